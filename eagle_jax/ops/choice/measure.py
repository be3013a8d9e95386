"""All candidates for the calls that a function makes: tried one after the other, what was found kept on disk."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator

from eagle_jax.durable import hold
from eagle_jax.ops.choice import findings, trial
from eagle_jax.ops.choice.arrays import arrays_for
from eagle_jax.ops.choice.findings import REFERENCE, Finding
from eagle_jax.ops.choice.recorded import Call
from eagle_jax.ops.dispatch import available_candidates

NO_TIME = "not measured: the time was up"
Progress = Callable[[int, int, str], None]


def missing(calls: Iterable[Call]) -> list[tuple[list[Call], list[str]]]:
    """Classes of calls with a choice to make on this device, and the candidates that nothing is known of."""
    measured = {finding.key for finding in findings.read()}
    device_name = findings.device()
    left = []
    for group in _groups(calls):
        call, names = group[0], available_candidates(group[0].operation)
        new = [name for name in names if (device_name, call.operation, call.shape, name) not in measured]
        if len(names) > 1 and new:
            left.append((group, new))
    return left


def measure(
    calls: Iterable[Call], *, anew: bool = False, seconds: float = math.inf, progress: Progress | None = None
) -> list[Finding]:
    """Tries the candidates that nothing is known of, and returns what was found.

    Args:
        anew: all of them, those among them that ended a process.
        seconds: time after which no further candidate is begun.
        progress: called with candidates done, candidates in all, and what is tried next.

    Raises:
        ValueError: another process measures.
        RuntimeError: the device does not answer any more after a candidate.
    """
    file = findings.path().with_suffix(".measuring")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as lock:
        hold(lock, file)
        left = (
            [(group, available_candidates(group[0].operation)) for group in _groups(calls)] if anew else missing(calls)
        )
        left = [(group, names) for group, names in left if len(names) > 1]
        until, done, total = time.monotonic() + seconds, itertools.count(), sum(len(names) for _, names in left)
        results: list[Finding] = []
        for group, names in left:
            description = f"{group[0].operation}, {group[0].shape}"

            def tell(description: str = description) -> None:
                if progress is not None:
                    progress(next(done), total, description)

            results += _tried(group, names, until, tell)
    findings.refresh(anew=anew)
    return results


def _tried(group: list[Call], names: list[str], until: float, tell: Callable[[], object]) -> Iterator[Finding]:
    """Yields the candidates of a class; without a reference none can be checked."""
    operation, shape = group[0].operation, group[0].shape
    if time.monotonic() > until:
        late = Finding(device=findings.device(), operation=operation, shape=shape, candidate="", reason=NO_TIME)
        skipped = [dataclasses.replace(late, candidate=name) for name in names]
        findings.keep(skipped)
        yield from skipped
        return
    calls = [(call, arrays_for(call.args)) for call in group]
    try:
        expected = trial.within(trial.LIMIT, lambda: trial.results(calls, REFERENCE))
    except Exception as error:
        reason = f"the reference fails: {type(error).__name__}: {error}".splitlines()[0][:200]
        failed = [Finding(device=findings.device(), operation=operation, shape=shape, candidate=name, reason=reason)
                  for name in names]  # fmt: skip
        findings.keep(failed)
        yield from failed
        return
    for name in names:
        tell()
        yield trial.tried(calls, name, None if name == REFERENCE else expected)


def _groups(calls: Iterable[Call]) -> list[list[Call]]:
    """Returns the calls of each class, those with equal shapes once."""
    groups: dict[tuple[str, str], dict[str, Call]] = {}
    for call in calls:
        if call.shape:
            groups.setdefault((call.operation, call.shape), {}).setdefault(str((call.args, call.fixed)), call)
    return [list(group.values()) for group in groups.values()]
