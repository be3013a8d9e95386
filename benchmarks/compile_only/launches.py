"""How many kernels a step launches and at how many conditionals it waits, read from the loop's compiled program."""

import re
from collections.abc import Callable

# What an optimised program names and does not run.
FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier", "domain"}
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
OPERATION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\((.*)$", re.MULTILINE)
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def launches(program: str) -> int | None:
    """Fusions, library calls, copies and the like in the loop that launches most; None without a loop.

    An inner loop counts as often as it is known to run, or else once; of branches the longest counts.
    """
    free = FREE | {"conditional"}  # what its branch launches counts
    return _in_loop(program, lambda operation: operation not in free and not operation.endswith("-done"))


def conditionals(program: str) -> int | None:
    """Conditionals in that loop, counted likewise: at each a GPU's host waits for the predicate."""
    return _in_loop(program, lambda operation: operation == "conditional")


def _in_loop(program: str, counts: Callable[[str], bool]) -> int | None:
    bodies = {name: OPERATION.findall(body) for name, body in COMPUTATION.findall(program)}

    def counted(name: str) -> int:
        return sum(count(operation, rest) for operation, rest in bodies.get(name, []))

    def count(operation: str, rest: str) -> int:
        if operation == "while":
            trips = TRIPS.search(rest)
            return (int(trips[1]) if trips else 1) * max(map(counted, called(rest, "body")))
        if operation == "call":
            return sum(map(counted, called(rest, "to_apply")))
        if operation == "conditional":
            names = "branch_computations", "true_computation", "false_computation"
            return counts(operation) + max(map(counted, called(rest, *names)), default=0)
        return int(counts(operation))

    loops = [rest for operations in bodies.values() for operation, rest in operations if operation == "while"]
    return max((counted(name) for rest in loops for name in called(rest, "body")), default=None)


def called(rest: str, *attributes: str) -> list[str]:
    """Computations that an operation names so."""
    named = re.findall(rf"(?:{'|'.join(attributes)})=(\{{[^}}]*\}}|[^,\s]+)", rest)
    return [name.strip(" %{}") for names in named for name in names.split(",")]
