"""Where the time of a step goes, phase by phase, as the device's own clock has it.

Every phase of the loop has a named scope, which the compiled program keeps with each of its operations. A few steps
run under JAX's profiler, and the seconds of every operation are added up by scope. An operation that the compiler made
out of several phases counts for the last of them.
"""

import contextlib
import dataclasses
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from eagle_jax.chat.prompts import Prompt
from eagle_jax.drafters.base import Plain
from eagle_jax.inspection.start import Start, greedy_requests
from eagle_jax.loading.model import Model
from eagle_jax.methods.choice import drafter_for

STEPS = 32

# Phases in the order in which a step has them, and the scopes that mark them: all of them in an operation's path.
PHASES = {
    "noise": ("noise",),
    "draft: first level": ("draft",),
    "draft: level {}": ("draft", r"level_(\d+)"),
    "draft: all levels at once": ("draft", "chain"),
    "check: embedding, norms, masks": ("verify",),
    "check: attention": ("verify", "attention"),
    "check: mlp": ("verify", "mlp"),
    "check: output matrix": ("verify", "lm_head"),
    "draw and walk": ("accept",),
    "draft: take in what was accepted": ("observe",),
    "commit": ("commit",),
}
REST = "rest"
CONTAINER = re.compile(r" (while|call|conditional)\(")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Seconds of one request and of one step in the middle of it.

    Attributes:
        prompt_tokens: of the prompt.
        prefill: seconds of reading the prompt and drawing the first token.
        plain: seconds of a step of plain decoding.
        step: seconds of a step.
        tokens: that a step committed.
        phases: seconds of each phase of a step, in order; "rest" is what no operation accounts for. On several cores
            operations may overlap, and the phases then sum to more than the step.
    """

    prompt_tokens: int
    prefill: float
    plain: float
    step: float
    tokens: float
    phases: Mapping[str, float]


def profile(
    model: Model,
    prompt: Prompt,
    *,
    drafter: str = "auto",
    tree: Any = "auto",
    max_new_tokens: int = 256,
    folder: str | Path | None = None,
) -> Profile:
    """Returns where the time of a step goes, at the beginning of the answer to a prompt.

    Args:
        max_new_tokens: length of the answer that caches are made for.
        folder: keep the profiler's trace there, for TensorBoard or Perfetto.

    Raises:
        ValueError, TypeError: as `generate` does.
    """
    chosen = drafter_for(model, drafter, tree)
    endless = dataclasses.replace(model, stop_ids=())
    start = Start(endless, chosen, greedy_requests(endless, [prompt], max_new_tokens))
    again = Start(endless, chosen, greedy_requests(endless, [prompt], max_new_tokens))  # the first one compiled
    timed = [(start.run(Plain(), STEPS), start.run(chosen, STEPS)) for _ in range(5)]  # in turn; the best counts
    plain, drafting = (
        min(runs, key=lambda timed_run: timed_run.seconds / timed_run.steps) for runs in zip(*timed, strict=True)
    )
    scopes = scopes_of(start.program(chosen))
    with _folder(folder) as into:
        earlier = traces_in(into)
        with jax.profiler.trace(str(into)):
            traced = start.run(chosen, STEPS)
        seconds = by_phase(operations(traces_in(into) - earlier), scopes)
    phases = {name: spent / traced.steps for name, spent in seconds.items()}
    left = traced.seconds / traced.steps - sum(phases.values())
    return Profile(
        prompt_tokens=len(start.batch.rows[0].request.prompt),
        prefill=again.batch.rows[0].prefill_seconds,
        plain=plain.seconds / plain.steps,
        step=drafting.seconds / drafting.steps,
        tokens=drafting.tokens / drafting.steps,
        phases=phases | {REST: max(left, 0.0)},
    )


def scopes_of(program: str) -> dict[str, str]:
    """Returns the path of scopes of every operation of a compiled program's text, by the operation's name; those left
    out that only contain others.
    """
    operations = re.finditer(r'^\s*(?:ROOT )?%?([\w.\-]+) = (.*?)op_name="([^"]*)"', program, flags=re.MULTILINE)
    return {name: path for name, what, path in (match.groups() for match in operations) if not CONTAINER.search(what)}


def phase_of(path: str) -> str | None:
    """Returns the phase of an operation, None outside of them all. The phase with the most scopes counts."""
    parts, best, phase_name = path.split("/"), 0, None
    for name, scopes in PHASES.items():
        matches = [next((m for part in parts if (m := re.fullmatch(scope, part))), None) for scope in scopes]
        if all(matches) and len(scopes) > best:
            groups = [group for match in matches if match is not None for group in match.groups()]
            best, phase_name = len(scopes), name.format(*(int(group) + 1 for group in groups))
    return phase_name


def by_phase(timed: Iterable[tuple[str, float]], scopes: Mapping[str, str]) -> dict[str, float]:
    """Returns the seconds of each phase, in the order of `PHASES`."""
    spent: dict[str, float] = {}
    for operation, seconds in timed:
        phase = phase_of(scopes.get(operation, ""))
        if phase is not None:
            spent[phase] = spent.get(phase, 0.0) + seconds
    order = [name.split("{")[0] for name in PHASES]

    def place(name: str) -> tuple[int, int]:
        level = re.search(r"level (\d+)$", name)
        return order.index(name[: level.start(1)] if level else name), int(level[1]) if level else 0

    return {name: spent[name] for name in sorted(spent, key=place)}


def traces_in(folder: Path) -> set[Path]:
    """Returns the profiler's files in a folder, of all traces that were kept there."""
    return set(folder.rglob("*.xplane.pb"))


def operations(traces: Iterable[Path]) -> list[tuple[str, float]]:
    """Returns names and seconds of what ran during a trace."""
    with warnings.catch_warnings():  # jaxlib 0.12's reader gives one; as an error it ends the process
        warnings.simplefilter("ignore", DeprecationWarning)
        return [
            (str(dict(event.stats).get("hlo_op", event.name)).lstrip("%"), event.duration_ns / 1e9)
            for path in traces
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes
            for line in plane.lines
            for event in line.events
        ]


@contextlib.contextmanager
def _folder(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)
