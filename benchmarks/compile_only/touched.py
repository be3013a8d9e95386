"""Bytes that the operations of a compiled program read and write, and the largest array that one makes.

Counted in the program's text, since the GPU compiler has no such count of its own: what each operation is given and
what it makes, of a fusion's argument only the slice that it takes. What a TPU keeps in its vector memory is left out.
"""

import math
import re
from collections.abc import Iterator

from benchmarks.compile_only.launches import COMPUTATION, FREE, TRIPS, called

SIZES = {"bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "s8": 1, "u8": 1, "s4": 1, "pred": 1, "s64": 8, "u64": 8}
LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)$", re.MULTILINE)
ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*S\(1\)\})?")  # S(1) is a TPU's vector memory
NAME = re.compile(r"%([\w.-]+)")
BRANCHES = "branch_computations", "true_computation", "false_computation"
Operations = dict[str, tuple[str, str, str]]  # by name: what it makes, what it does, and the rest of its line


def computations(program: str) -> dict[str, Operations]:
    """The operations of each computation."""
    return {
        name: {own: (made, operation, rest) for own, made, operation, rest in LINE.findall(body)}
        for name, body in COMPUTATION.findall(program)
    }


def touched(program: str, branch: int | None = None) -> int:
    """Bytes that one run reads and writes.

    Args:
        branch: which branch is taken, wherever there are several; None is the one that touches most.
    """
    parts = computations(program)
    entry = re.search(r"^ENTRY %?([\w.-]+)", program, re.MULTILINE)
    assert entry is not None
    return _of(entry[1], parts, branch)


def largest(program: str, slots: int) -> tuple[int, str]:
    """Bytes and shape of the largest array that an operation makes, caches apart, whose third axis are `slots`."""
    parts = computations(program)
    inside = {name for part in parts.values() for _, what, rest in part.values() if what == "fusion"
              for name in called(rest, "calls")}  # fmt: skip
    made = [
        (_size(kind, dims), f"{kind}[{dims}]")
        for name, part in parts.items()
        for makes, operation, _ in part.values()
        for kind, dims, _ in ARRAY.findall(makes)
        if name not in inside and operation not in FREE | {"while", "conditional", "call", "copy-done"}
        and not re.fullmatch(rf"\d+,\d+,{slots},\d+", dims)
    ]  # fmt: skip
    return max(made)


def _of(name: str, parts: dict[str, Operations], branch: int | None) -> int:
    return sum(_bytes(own, parts[name], parts, branch) for own in parts[name])


def _bytes(own: str, part: Operations, parts: dict[str, Operations], branch: int | None) -> int:
    made, operation, rest = part[own]
    if operation == "while":
        return _trips(rest, parts) * sum(_of(body, parts, branch) for body in called(rest, "body"))
    if operation == "conditional":
        each = [_of(one, parts, branch) for one in called(rest, *BRANCHES)]
        return max(each) if branch is None else each[branch]
    if operation == "call":
        return sum(_of(body, parts, branch) for body in called(rest, "to_apply"))
    if operation in FREE or operation.endswith("-done"):
        return 0
    given = list(_arguments(rest, part))
    if operation == "copy-start":  # what it makes names its argument too
        return 2 * sum(given) if "S(1)" not in made else sum(given)
    if operation in ("slice", "dynamic-slice", "gather"):
        return 2 * _all(made)
    if operation == "dynamic-update-slice":
        return 2 * given[1]
    if operation in ("fusion", "fusion-start"):
        inner = parts[called(rest, "calls")[0]]
        given = [_read(index, size, inner, parts) for index, size in enumerate(given)]
        return sum(given) + _written(made if operation == "fusion" else list(inner.values())[-1][0], inner)
    return sum(given) + _all(made)


def _trips(rest: str, parts: dict[str, Operations]) -> int:
    """How often a loop runs: as it is stated, or the number in its condition."""
    if stated := TRIPS.search(rest):
        return int(stated[1])
    condition = parts[called(rest, "condition")[0]].values()
    counts = [int(rest.split(")")[0]) for made, what, rest in condition if what == "constant" and made[:3] == "s32"]
    return counts[0] if len(counts) == 1 else 1


def _arguments(rest: str, part: Operations) -> Iterator[int]:
    """Bytes of each argument."""
    yield from (_all(part[name][0]) if name in part else 0 for name in _names(rest))


def _names(rest: str) -> list[str]:
    """The arguments of an operation."""
    depth, end = 1, 0
    while depth:
        depth += {"(": 1, ")": -1}.get(rest[end], 0)
        end += 1
    return NAME.findall(rest[: end - 1])


def _read(index: int, size: int, inner: Operations, parts: dict[str, Operations]) -> int:
    """Bytes that a fusion reads of an argument: what it slices out of it, if it does nothing else with it."""
    own = [name for name, (_, what, rest) in inner.items() if what == "parameter" and rest.startswith(f"{index})")]
    users, seen = list(own), 0
    while users:
        name = users.pop()
        for user, (made, what, rest) in inner.items():
            names = _names(rest)
            if name not in names:
                continue
            if what == "fusion":
                inside = parts[called(rest, "calls")[0]]
                seen += sum(_read(at, size, inside, parts) for at, one in enumerate(_names(rest)) if one == name)
            elif what == "bitcast" and user != list(inner)[-1]:
                users.append(user)
            elif what in ("slice", "dynamic-slice", "gather") and names[0] == name:
                seen += _all(made)
            elif what == "dynamic-update-slice" and names[0] == name:
                continue
            else:
                return size
    return min(seen, size)


def _written(made: str, inner: Operations) -> int:
    """Bytes that a fusion writes: of an array that it updates in place only what changes."""
    updates = [rest for _, what, rest in inner.values() if what == "dynamic-update-slice"]
    if not updates:
        return _all(made)
    return sum(_all(inner[_names(rest)[1]][0]) for rest in updates)


def _all(made: str) -> int:
    return sum(_size(kind, dims) for kind, dims, near in ARRAY.findall(made) if not near)


def _size(kind: str, dims: str) -> int:
    return SIZES.get(kind, 4) * math.prod(int(dim) for dim in dims.split(",") if dim)
