"""How many kernels a cycle launches, read from the compiled program of the decoding loop."""

import re

# What an optimised program names and does not run, and the second halves of what runs beside other things.
FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier", "domain"}
HEADER = re.compile(r"(?:ENTRY )?%?([\w.-]+) .*\{$")
OPERATION = re.compile(r"\s+(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def launches(program: str | None) -> int | None:
    """Fusions, library calls, copies and the like in the loop that launches most; None where there is no loop to read.

    An inner loop counts as often as it is known to run, or else once; of branches the longest counts.
    """
    bodies = _computations(program or "")
    loops = [line for lines in bodies.values() for line in lines if _operation(line) == "while"]
    return max((_kernels(name, bodies) for line in loops for name in _called(line, "body")), default=None)


def _computations(program: str) -> dict[str, list[str]]:
    """The lines of each by its name."""
    bodies: dict[str, list[str]] = {}
    name = ""
    for line in program.splitlines():
        header = None if line.startswith((" ", "HloModule")) else HEADER.match(line)
        if header is not None:
            name = header[1]
        elif line.startswith(" "):
            bodies.setdefault(name, []).append(line)
    return bodies


def _kernels(name: str, bodies: dict[str, list[str]]) -> int:
    return sum(_launched(line, bodies) for line in bodies.get(name, []))


def _launched(line: str, bodies: dict[str, list[str]]) -> int:
    match _operation(line):
        case None:
            return 0
        case "while":
            trips = TRIPS.search(line)
            return (int(trips[1]) if trips else 1) * sum(_kernels(body, bodies) for body in _called(line, "body"))
        case "call":
            return sum(_kernels(name, bodies) for name in _called(line, "to_apply"))
        case "conditional":
            branches = _called(line, "branch_computations", "true_computation", "false_computation")
            return max((_kernels(branch, bodies) for branch in branches), default=0)
        case operation:
            return 0 if operation in FREE or operation.endswith("-done") else 1


def _operation(line: str) -> str | None:
    found = OPERATION.match(line)
    return found and found[1]


def _called(line: str, *attributes: str) -> list[str]:
    """Computations that an operation names so."""
    named = re.findall(rf"(?:{'|'.join(attributes)})=(\{{[^}}]*\}}|[^,\s]+)", line)
    return [name.strip(" %{}") for names in named for name in names.split(",")]
