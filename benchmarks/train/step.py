"""Is a training step at least as fast as the same step in eager PyTorch: same target, head, rows, loss and optimizer?

A step is the frozen target's forward pass over the rows, the head's draft steps, the gradient, clipping and AdamW, all
in float32. Ours is measured twice: all rows in one pass (`batch: 8`), and in passes of 4 (`batch: 4, accumulate: 2`),
which is the same step, since the answers in all rows are of one length. PyTorch's is always one pass. All start with
the same weights, and the run stops if their first losses differ. They take turns, step by step, with a pause and an
untimed step so that the threads of one do not disturb the next. A ratio is that of two steps of one turn: median,
lowest and highest. Needs PyTorch and transformers; PyTorch's step is the reference of `tests/training`.

    python -m benchmarks.train.step --repeats 10
"""

import dataclasses
import functools
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from benchmarks.common import command
from benchmarks.common.tables import show
from eagle_jax.converters import load_target, save_head
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.training import heads, optimizer
from eagle_jax.training.objective import EAGLE3, Objective
from eagle_jax.training.settings import HeadConfig, OptimizerConfig
from eagle_jax.training.update import begin, update, without_params

RULE = OptimizerConfig(rate=1e-4, warmup=0, decay="constant", clip="norm", clip_at=0.5)
HARMONISED = Objective(steps=3, decay=0.9, feature_weight=0.5, distribution_weight=1.0, noise=0.0)
EAGLE3_HEAD = HeadConfig(method="eagle3", intermediate_size=1024, taps=(2, 4, 6))
CASES = {
    "EAGLE-1, 1 step": (HeadConfig(intermediate_size=1024), dataclasses.replace(Objective(), noise=0.0)),
    "EAGLE-1, 3 steps": (HeadConfig(intermediate_size=1024), HARMONISED),
    "EAGLE-3, 5 steps": (EAGLE3_HEAD, dataclasses.replace(EAGLE3, steps=5)),
}
PASS = 4  # rows of a pass where an update is made of several
Step = Callable[[], float]  # runs a step and returns its loss


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--batch", type=int, default=8, help=f"rows of a step, a multiple of {PASS}")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    if options.batch < PASS or options.batch % PASS:
        parser.error(f"--batch {options.batch}: expected a multiple of {PASS}")
    rows = []
    for case in CASES:
        whole, parted, eager = in_turns(case, options.batch, options.length, options.repeats)
        times = (f"{1000 * statistics.median(column):.0f}" for column in (whole, parted, eager))
        ratios = (list(map(operator.truediv, eager, own)) for own in (whole, parted))
        rows.append((case, *times, *(f"{statistics.median(r):.2f} ({min(r):.2f} .. {max(r):.2f})" for r in ratios)))
    threads = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    columns = ("one pass, ms", f"passes of {PASS}, ms", "PyTorch eager, ms", "speedup", f"in passes of {PASS}")
    show(f"{options.batch} rows of {options.length} tokens, {threads}", ("step", *columns), rows)


def in_turns(case: str, batch: int, length: int, repeats: int) -> list[list[float]]:
    """Seconds, turn by turn, of our step in one pass, of it in several, and of PyTorch's."""
    tokens = np.random.default_rng(0).integers(5, 2048, (batch, length)).astype(np.int32)
    answer = np.broadcast_to(np.arange(length) >= length // 4, tokens.shape)
    target = load_target(command.PAIR / "target", dtype="float32")
    kind, objective = CASES[case]
    head = heads.first(kind, target, None, jax.random.key(0))
    sides = functools.partial(ours, passes=1), functools.partial(ours, passes=batch // PASS), theirs
    steps = [side(target, head, objective, tokens, answer) for side in sides]
    losses = [step() for step in steps]
    if max(losses) - min(losses) > 1e-3 * abs(losses[-1]):
        raise ValueError(f"{case}: the first losses are {losses}; they do not compute the same")
    turns = [[seconds(step) for step in steps] for _ in range(repeats)]
    return [list(column) for column in zip(*turns, strict=True)]


def seconds(step: Step) -> float:
    """Of one step, after a pause and an untimed one: the threads of a library before spin on for a while."""
    time.sleep(0.3)
    step()
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def ours(
    target: LM, head: AnyHead, objective: Objective, tokens: np.ndarray, answer: np.ndarray, *, passes: int
) -> Step:
    """A step of `eagle-jax train`."""
    tokens, answer = (part.reshape(passes, -1, part.shape[1]) for part in (tokens, answer))
    rule = optimizer.make(RULE, 1000)
    state, frame = begin(head, rule, jax.random.key(0)), without_params(head)

    def step() -> float:
        nonlocal state
        state, outcome = update(state, frame, target, tokens, answer, rule=rule, objective=objective)
        jax.block_until_ready(state)
        return float(outcome.loss)

    return step


def theirs(_: LM, head: AnyHead, objective: Objective, tokens: np.ndarray, answer: np.ndarray) -> Step:
    """The same step in PyTorch, the target by transformers."""
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "training"))
    import torch_reference

    model = LlamaForCausalLM.from_pretrained(command.PAIR / "target", dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory() as folder:
        save_head(head, folder)
        stored = load_file(Path(folder) / "model.safetensors")
    params = {name: value.clone().requires_grad_() for name, value in stored.items() if value.is_floating_point()}
    layers = head.config.layers
    sizes = torch_reference.Sizes(
        layers.num_attention_heads, layers.num_key_value_heads, layers.head_dim, layers.rms_norm_eps, layers.rope.theta
    )
    rule = torch.optim.AdamW(params.values(), lr=RULE.rate, betas=RULE.betas, weight_decay=RULE.weight_decay)
    ids, answered = torch.from_numpy(tokens).long(), torch.from_numpy(answer.copy())
    matrix = model.get_input_embeddings().weight.detach()
    weights = {name: getattr(objective, name) for name in ("steps", "decay", "feature_weight", "distribution_weight")}

    def step() -> float:
        with torch.no_grad():
            states = model.model(ids, output_hidden_states=True, use_cache=False).hidden_states
        taps = tuple(states[tap] for tap in head.taps)
        text = torch_reference.Text(ids, answered, states[-1], taps, embedding=matrix, output=matrix)
        value, _ = torch_reference.loss(params, sizes, text, **weights)
        rule.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(params.values(), RULE.clip_at)
        rule.step()
        return float(value.detach())

    return step


if __name__ == "__main__":
    command.begin(main)
