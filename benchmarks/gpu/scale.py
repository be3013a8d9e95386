"""How large everything is: as published, or tiny for a rehearsal."""

import dataclasses

from chart import PUBLISHED, Chart, Error
from synthetic import Shape, Synthetic, make

from eagle_jax import Model
from eagle_jax.inspection import tune as tuning
from eagle_jax.scheduling.request import Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of all sections.

    Attributes:
        tiny: whether this is a rehearsal.
        shape, large: of the synthetic pairs (`synthetic.Shape`).
        dtype: of weights.
        tree: nodes, depth and top-k of the published tree.
        nodes: target passes that are timed, the tree's and one row among them.
        prompt, tokens: of each request.
        prompts: requests of one at a time.
        batches: requests together.
        cycles: of a short and a long timing; what a cycle takes is the difference of theirs.
        repeats: timings, of which the least counts.
        copied: bytes of the array that is copied.
        attention: (requests, slots, used slots) of attention alone.
        swept: bytes of the caches that attention alone reads in turn, more than the device keeps beside its cores.
        error: of the heads.
    """

    tiny: bool
    shape: str
    large: str
    dtype: str
    tree: tuple[int, int, int]
    nodes: tuple[int, ...]
    prompt: int
    tokens: int
    prompts: int
    batches: tuple[int, ...]
    cycles: tuple[int, int]
    repeats: int
    copied: int
    attention: tuple[tuple[int, int, int], ...]
    swept: int
    error: Error = PUBLISHED

    @property
    def depth(self) -> int:
        """Levels of the tree below its root."""
        return self.tree[1] + 1

    def pair(self, shape: str | None = None, quantize: str | None = None) -> Synthetic:
        """A synthetic pair of these sizes."""
        return make(Shape.of(shape or self.shape), self.error, quantize=quantize, dtype=self.dtype)

    def asked(self, chart: Chart, count: int) -> list[list[int]]:
        """Prompts."""
        return [chart.prompt(self.prompt, seed) for seed in range(count)]

    def asks(self, model: Model, chart: Chart, count: int) -> list[Request]:
        """Prompts as requests for answers of `tokens` tokens."""
        return tuning.greedy_requests(model, self.asked(chart, count), self.tokens)


FULL = Scale(
    tiny=False,
    shape="8b",
    large="70b",
    dtype="bfloat16",
    tree=(60, 7, 10),
    nodes=(1, 16, 60, 256, 1024),
    prompt=128,
    tokens=320,
    prompts=4,
    batches=(1, 4, 16, 64),
    cycles=(8, 40),
    repeats=6,
    copied=4 * 2**30,
    attention=((1, 2048, 512), (1, 8192, 8192), (16, 2048, 2048)),
    swept=200 * 10**6,
)
TINY = Scale(
    tiny=True,
    shape="tiny",
    large="tiny",
    dtype="float32",
    tree=(8, 2, 2),
    nodes=(1, 8),
    prompt=8,
    tokens=24,
    prompts=1,
    batches=(1, 2),
    cycles=(1, 4),
    repeats=1,
    copied=2**20,
    attention=((1, 256, 100),),
    swept=10**5,
)
