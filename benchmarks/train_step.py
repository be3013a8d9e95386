"""Is a training step at least as fast as the same step in eager PyTorch: same target, head, rows, loss and optimizer?

A step is the frozen target's pass over the rows, the head's draft steps, the gradient, its clipping and AdamW, in
float32. Ours is measured twice: all rows in one pass (`batch: 8`), and in passes of four (`batch: 4, accumulate: 2`),
which is the same step, since the answers in all rows are of one length. PyTorch's is always one pass. All begin with
the same weights, and their first losses are compared before anything is timed. Each has a process of its own. They take
turns, step by step, with a pause between them so that the threads of one do not disturb the next; a ratio is the
quotient of two steps of one turn, and the table has the median, the lowest and the highest. Needs PyTorch and
transformers.

    python benchmarks/train_step.py --repeats 10
"""

import argparse
import contextlib
import dataclasses
import functools
import multiprocessing
import operator
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import jax
import numpy as np
import torch
import torch_step
from common import table
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from eagle_jax.converters import load_target, save_head
from eagle_jax.loading.folders import PAIR
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.training import heads, optimizer
from eagle_jax.training.loss import EAGLE3, Objective
from eagle_jax.training.settings import HeadConfig, OptimizerConfig
from eagle_jax.training.update import begin, update, without_params

TAPS = (2, 4, 6)
RULE = OptimizerConfig(rate=1e-4, warmup=0, decay="constant", clip="norm", clip_at=0.5)
HARMONISED = Objective(steps=3, decay=0.9, feature_weight=0.5, law_weight=1.0, noise=0.0)
CASES = {
    "EAGLE-1, 1 step": (HeadConfig(intermediate_size=1024), dataclasses.replace(Objective(), noise=0.0)),
    "EAGLE-1, 3 steps": (HeadConfig(intermediate_size=1024), HARMONISED),
    "EAGLE-3, 5 steps": (
        HeadConfig(method="eagle3", intermediate_size=1024, taps=TAPS),
        dataclasses.replace(EAGLE3, steps=5),
    ),
}
PAUSE = 0.3  # seconds
PASS = 4  # rows of a pass where an update is made of several


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8, help=f"rows of a step, a multiple of {PASS}")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    if options.batch < PASS or options.batch % PASS:
        parser.error(f"--batch {options.batch}: expected a multiple of {PASS}")
    rows = []
    for case in CASES:
        whole, parted, eager = zip(*in_turns(case, options), strict=True)
        times = (f"{1000 * statistics.median(column):.0f}" for column in (whole, parted, eager))
        ratios = (spread(list(map(operator.truediv, eager, own))) for own in (whole, parted))
        rows.append((case, *times, *ratios))
    print(
        f"{options.batch} rows of {options.length} tokens, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    parts = f"passes of {PASS}"
    header = ("step", "one pass, ms", f"{parts}, ms", "PyTorch eager, ms", "times as fast", f"in {parts}")
    print(table(header, rows))


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"


def in_turns(case: str, options: argparse.Namespace) -> list[tuple[float, ...]]:
    """Seconds, turn by turn, of our step in one pass, of it in several, and of PyTorch's."""
    sides = functools.partial(ours, passes=1), functools.partial(ours, passes=options.batch // PASS), theirs
    with contextlib.ExitStack() as stack:
        steppings = [stack.enter_context(Stepping(side, case, options.batch, options.length)) for side in sides]
        losses = [stepping.loss for stepping in steppings]
        if max(losses) - min(losses) > 1e-3 * abs(losses[-1]):
            raise SystemExit(f"{case}: losses of {losses}; they do not compute the same")
        return [tuple(stepping.seconds() for stepping in steppings) for _ in range(options.repeats)]


class Stepping:
    """Training steps in a process of their own, which waits while it is not asked.

    Attributes:
        loss: of the first step.
    """

    def __init__(self, side: Callable[..., Callable[[], float]], case: str, batch: int, length: int):
        spawn = multiprocessing.get_context("spawn")
        self._asked, other = spawn.Pipe()
        self._process = spawn.Process(target=answer_questions, args=(other, side, case, batch, length), daemon=True)
        self._process.start()
        other.close()
        self.loss: float = self._asked.recv()

    def seconds(self) -> float:
        """Of one more step."""
        self._asked.send(None)
        return self._asked.recv()

    def __enter__(self) -> "Stepping":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def answer_questions(
    asked: Connection, side: Callable[..., Callable[[], float]], case: str, batch: int, length: int
) -> None:
    """Says the loss of a first step, and from then on, whenever it is asked, how long another one takes."""
    tokens = np.random.default_rng(0).integers(5, 2048, (batch, length)).astype(np.int32)
    answer = np.broadcast_to(np.arange(length) >= length // 4, tokens.shape)
    target = load_target(PAIR / "target", dtype="float32")
    kind, objective = CASES[case]
    head = heads.first(kind, target, None, jax.random.key(0))
    step = side(target, head, objective, tokens, answer)
    loss = step()
    step()
    asked.send(loss)
    while True:
        asked.recv()
        time.sleep(PAUSE)
        start = time.perf_counter()
        step()
        asked.send(time.perf_counter() - start)


def ours(
    target: LM, head: AnyHead, objective: Objective, tokens: np.ndarray, answer: np.ndarray, *, passes: int
) -> Callable[[], float]:
    """A step of `eagle-jax train`; gives its loss."""
    tokens, answer = (part.reshape(passes, -1, part.shape[1]) for part in (tokens, answer))
    rule = optimizer.make(RULE, 1000)
    state, frame = begin(head, rule, jax.random.key(0)), without_params(head)

    def step() -> float:
        nonlocal state
        state, outcome = update(state, frame, target, tokens, answer, rule=rule, objective=objective)
        jax.block_until_ready(state)
        return float(outcome.loss)

    return step


def theirs(_: LM, head: AnyHead, objective: Objective, tokens: np.ndarray, answer: np.ndarray) -> Callable[[], float]:
    """The same step in PyTorch, the target by transformers."""
    model = LlamaForCausalLM.from_pretrained(PAIR / "target", dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory() as folder:
        save_head(head, folder)
        stored = load_file(Path(folder) / "model.safetensors")
    params = {name: value.clone().requires_grad_() for name, value in stored.items() if value.is_floating_point()}
    layers = head.config.layers
    sizes = torch_step.Sizes(
        layers.num_attention_heads, layers.num_key_value_heads, layers.head_dim, layers.rms_norm_eps, layers.rope.theta
    )
    rule = torch.optim.AdamW(params.values(), lr=RULE.rate, betas=RULE.betas, weight_decay=RULE.weight_decay)
    ids, said = torch.from_numpy(tokens).long(), torch.from_numpy(answer.copy())
    matrix = model.get_input_embeddings().weight.detach()
    weights = dataclasses.asdict(objective)
    asked = {name: weights[name] for name in ("steps", "decay", "feature_weight", "law_weight")}

    def step() -> float:
        with torch.no_grad():
            states = model.model(ids, output_hidden_states=True, use_cache=False).hidden_states
        taps = tuple(states[tap] for tap in head.taps)
        text = torch_step.Text(ids, said, states[-1], taps, embedding=matrix, output=matrix)
        value, _ = torch_step.loss(params, sizes, text, **asked)
        rule.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(params.values(), RULE.clip_at)
        rule.step()
        return float(value.detach())

    return step


if __name__ == "__main__":
    main()
