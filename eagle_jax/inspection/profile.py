"""Profiles the phases of a step, by the device's clock.

Every phase of the loop has a named scope, which the compiled program keeps with each operation. A few steps run under
JAX's profiler, and the seconds of the operations are added up by scope. An operation that the compiler fused from
several phases counts for the last one.
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

# Phases in the order of a step, with their scopes, all of which are in an operation's path.
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
    """Seconds of one request and of its steps.

    Attributes:
        prompt_tokens: number of tokens of the prompt.
        prefill: seconds of prefill and sampling the first token.
        plain: seconds of a step of plain decoding.
        step: seconds of a step.
        tokens: mean number of tokens that a step committed.
        phases: seconds of each phase of a step, in order; "rest" is time without an operation of any phase. On several
            cores operations may overlap, and the phases then sum to more than the step.
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
    """Profiles steps at the beginning of the answer to a prompt.

    Args:
        max_new_tokens: length of the answer that caches are made for.
        folder: folder to keep the profiler's trace in, for TensorBoard or Perfetto.

    Raises:
        ValueError, TypeError: as `generate` does.
    """
    method_drafter = drafter_for(model, drafter, tree)
    endless = dataclasses.replace(model, stop_ids=())
    requests = greedy_requests(endless, [prompt], max_new_tokens)
    start = Start(endless, method_drafter, requests)
    warm_start = Start(endless, method_drafter, requests)  # prefill is compiled by now
    # alternating; the best run counts
    runs = [(start.run(Plain(), STEPS), start.run(method_drafter, STEPS)) for _ in range(5)]
    plain, drafting = (min(column, key=lambda run: run.seconds / run.steps) for column in zip(*runs, strict=True))
    scopes = scopes_of(start.program(method_drafter))
    with _folder(folder) as into:
        earlier = traces_in(into)
        with jax.profiler.trace(str(into)):
            traced = start.run(method_drafter, STEPS)
        seconds = by_phase(operations(traces_in(into) - earlier), scopes)
    phases = {name: spent / traced.steps for name, spent in seconds.items()}
    left = traced.seconds / traced.steps - sum(phases.values())
    return Profile(
        prompt_tokens=len(start.batch.rows[0].request.prompt),
        prefill=warm_start.batch.rows[0].prefill_seconds,
        plain=plain.seconds / plain.steps,
        step=drafting.seconds / drafting.steps,
        tokens=drafting.tokens / drafting.steps,
        phases=phases | {REST: max(left, 0.0)},
    )


def scopes_of(program: str) -> dict[str, str]:
    """Returns the scope path of each operation in a compiled program's text, by name, without loops and calls."""
    operations = re.finditer(r'^\s*(?:ROOT )?%?([\w.\-]+) = (.*?)op_name="([^"]*)"', program, flags=re.MULTILINE)
    return {name: path for name, what, path in (match.groups() for match in operations) if not CONTAINER.search(what)}


def phase_of(path: str) -> str | None:
    """Returns the phase of an operation by its path, if any; the phase with the most scopes wins."""
    parts, best, phase_name = path.split("/"), 0, None
    for name, scopes in PHASES.items():
        matches = [next((m for part in parts if (m := re.fullmatch(scope, part))), None) for scope in scopes]
        if all(matches) and len(scopes) > best:
            groups = [group for match in matches if match is not None for group in match.groups()]
            best, phase_name = len(scopes), name.format(*(int(group) + 1 for group in groups))
    return phase_name


def by_phase(operations: Iterable[tuple[str, float]], scopes: Mapping[str, str]) -> dict[str, float]:
    """Returns the seconds of each phase, in the order of `PHASES`."""
    phase_seconds: dict[str, float] = {}
    for operation, seconds in operations:
        phase = phase_of(scopes.get(operation, ""))
        if phase is not None:
            phase_seconds[phase] = phase_seconds.get(phase, 0.0) + seconds
    order = [name.split("{")[0] for name in PHASES]

    def place(name: str) -> tuple[int, int]:
        level = re.search(r"level (\d+)$", name)
        return order.index(name[: level.start(1)] if level else name), int(level[1]) if level else 0

    return {name: phase_seconds[name] for name in sorted(phase_seconds, key=place)}


def traces_in(folder: Path) -> set[Path]:
    """Returns the profiler's files of all traces in a folder."""
    return set(folder.rglob("*.xplane.pb"))


def operations(traces: Iterable[Path]) -> list[tuple[str, float]]:
    """Returns names and seconds of the operations in traces."""
    with warnings.catch_warnings():  # jaxlib 0.12's reader warns; as an error the warning would end the process
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
