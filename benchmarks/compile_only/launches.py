"""How many kernels a step launches, read from the compiled program of the decoding loop."""

import re

# What an optimised program names and does not run.
FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier", "domain"}
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
OPERATION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\((.*)$", re.MULTILINE)
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def launches(program: str) -> int | None:
    """Fusions, library calls, copies and the like in the loop that launches most; None without a loop.

    An inner loop counts as often as it is known to run, or else once; of branches the longest counts.
    """
    bodies = {name: OPERATION.findall(body) for name, body in COMPUTATION.findall(program)}

    def kernels(name: str) -> int:
        return sum(launched(operation, rest) for operation, rest in bodies.get(name, []))

    def launched(operation: str, rest: str) -> int:
        if operation == "while":
            trips = TRIPS.search(rest)
            return (int(trips[1]) if trips else 1) * max(map(kernels, called(rest, "body")))
        if operation == "call":
            return sum(map(kernels, called(rest, "to_apply")))
        if operation == "conditional":
            names = "branch_computations", "true_computation", "false_computation"
            return max(map(kernels, called(rest, *names)), default=0)
        return 0 if operation in FREE or operation.endswith("-done") else 1

    loops = [rest for operations in bodies.values() for operation, rest in operations if operation == "while"]
    return max((kernels(name) for rest in loops for name in called(rest, "body")), default=None)


def called(rest: str, *attributes: str) -> list[str]:
    """Computations that an operation names so."""
    named = re.findall(rf"(?:{'|'.join(attributes)})=(\{{[^}}]*\}}|[^,\s]+)", rest)
    return [name.strip(" %{}") for names in named for name in names.split(",")]
