"""Measures all candidates for recorded calls, one by one, and saves the findings."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator

from eagle_jax.durable import lock_file
from eagle_jax.ops.choice import findings, trial
from eagle_jax.ops.choice.arrays import arrays_for
from eagle_jax.ops.choice.findings import REFERENCE, Finding
from eagle_jax.ops.choice.recorded import Call
from eagle_jax.ops.dispatch import available_candidates

NO_TIME = "not measured: the time limit was reached"
Progress = Callable[[int, int, str], None]


def missing(calls: Iterable[Call]) -> list[tuple[list[Call], list[str]]]:
    """Returns the classes of calls that have several candidates, with the candidates not measured yet."""
    measured = {one.key for one in findings.read()}
    device_name = findings.device()
    unmeasured = []
    for group in _groups(calls):
        call, names = group[0], available_candidates(group[0].operation)
        new = [name for name in names if (device_name, call.operation, call.shape, name) not in measured]
        if len(names) > 1 and new:
            unmeasured.append((group, new))
    return unmeasured


def measure(
    calls: Iterable[Call], *, anew: bool = False, seconds: float = math.inf, progress: Progress | None = None
) -> list[Finding]:
    """Measures the candidates not measured yet, and returns their findings.

    Args:
        anew: measure all candidates again, also those that ended a process.
        seconds: time limit, after which no further candidate begins.
        progress: called with the number of candidates done, their total, and the next operation.

    Raises:
        ValueError: another process is measuring.
        RuntimeError: the device stopped responding after a candidate.
    """
    file = findings.path().with_suffix(".measuring")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as lock:
        lock_file(lock, file)
        left = (
            [(group, available_candidates(group[0].operation)) for group in _groups(calls)] if anew else missing(calls)
        )
        left = [(group, names) for group, names in left if len(names) > 1]
        until, done, total = time.monotonic() + seconds, itertools.count(), sum(len(names) for _, names in left)
        results: list[Finding] = []
        for group, names in left:
            description = f"{group[0].operation}, {group[0].shape}"

            def report(description: str = description) -> None:
                if progress is not None:
                    progress(next(done), total, description)

            results += _findings(group, names, until, report)
    findings.refresh(anew=anew)
    return results


def _findings(group: list[Call], names: list[str], until: float, report: Callable[[], object]) -> Iterator[Finding]:
    """Yields the findings of a class's candidates; if the reference fails, none can be checked."""
    operation, shape = group[0].operation, group[0].shape
    if time.monotonic() > until:
        late = Finding(device=findings.device(), operation=operation, shape=shape, candidate="", reason=NO_TIME)
        skipped = [dataclasses.replace(late, candidate=name) for name in names]
        findings.save(skipped)
        yield from skipped
        return
    calls = [(call, arrays_for(call.args)) for call in group]
    try:
        expected = trial.within(trial.LIMIT, lambda: trial.results(calls, REFERENCE))
    except Exception as error:
        reason = f"the reference fails: {type(error).__name__}: {error}".splitlines()[0][:200]
        failed = [Finding(device=findings.device(), operation=operation, shape=shape, candidate=name, reason=reason)
                  for name in names]  # fmt: skip
        findings.save(failed)
        yield from failed
        return
    for name in names:
        report()
        yield trial.measure(calls, name, None if name == REFERENCE else expected)


def _groups(calls: Iterable[Call]) -> list[list[Call]]:
    """Groups calls by class; calls with equal shapes are kept once."""
    groups: dict[tuple[str, str], dict[str, Call]] = {}
    for call in calls:
        if call.shape:
            groups.setdefault((call.operation, call.shape), {}).setdefault(str((call.args, call.fixed)), call)
    return [list(group.values()) for group in groups.values()]
