"""A loaded model: a target, what it takes to talk to it, and what drafts for it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax

from eagle_jax import ops
from eagle_jax.decoding.calibration import Prior
from eagle_jax.drafters.rest import Datastore
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.models.target import Target
from eagle_jax.ops.quantized import QuantArray
from eagle_jax.sharding import Sharding


@dataclasses.dataclass(frozen=True)
class Model:
    """A target with what it takes to talk to it, and what drafts for it.

    Attributes:
        target: the model whose text is generated.
        head: its draft head, or heads; None if it has none.
        tokenizer: HuggingFace tokenizer; None if the folder has none (prompts are token ids then).
        stop_ids: tokens that end an answer.
        context: most tokens of prompt and answer together.
        sharding: the devices that it is sharded over; None for one device.
        draft: a small model that drafts for it; None if it has none.
        datastore: texts to draft from; None if there are none.
        generation: what the model's `generation_config.json` sets, under the names of `generate`'s options. Nothing
            follows it by itself: `generate(model, prompt, **model.generation)`.
        calibration: how often the head's guesses are accepted; None where its folder does not say.
    """

    target: Target
    head: AnyHead | None
    tokenizer: Any
    stop_ids: tuple[int, ...]
    context: int
    sharding: Sharding | None = None
    draft: LM | None = None
    datastore: Datastore | None = None
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    calibration: Prior | None = None

    @property
    def dtype(self) -> str:
        """Name of the dtype of the target's weights, or of what it computes in if only that is known."""
        return str(getattr(self.target, "dtype", None) or self.target.activations)

    @functools.cached_property
    def size(self) -> int:
        """Number of the target's parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.target, is_leaf=ops.is_leaf))

    @functools.cached_property
    def weights_size(self) -> int:
        """Bytes of the target's weights."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.target))

    @functools.cached_property
    def packed_weights(self) -> tuple[ops.PackedWeight, ...]:
        """The target's weights that a backend has packed."""
        leaves = jax.tree.leaves(self.target, is_leaf=ops.is_leaf)
        return tuple(leaf for leaf in leaves if isinstance(leaf, ops.PackedWeight))

    @functools.cached_property
    def is_quantized(self) -> bool:
        """Whether any of the target's weights is quantized, in its files or by `quantize`."""
        return any(_is_quantized(leaf) for leaf in jax.tree.leaves(self.target, is_leaf=ops.is_leaf))

    @functools.cached_property
    def drafters(self) -> dict[Any, Any]:
        """Drafters made for it, by what they were made of: programs know the same objects again."""
        return {}

    def __repr__(self) -> str:
        """Returns one line; the weights themselves would be fetched from the device to be shown."""
        parts = [
            f"target={type(self.target).__name__} of {self.size:,} numbers, {self.dtype}",
            f"context={self.context}",
        ]
        parts += [
            f"{name}={type(getattr(self, name)).__name__}"
            for name in ("head", "draft", "datastore", "sharding")
            if getattr(self, name) is not None
        ]
        return f"Model({', '.join(parts)})"


def _is_quantized(weight: Any) -> bool:
    if isinstance(weight, ops.PackedWeight):
        return weight.is_quantized
    return isinstance(weight.data if isinstance(weight, ops.Transposed) else weight, QuantArray)
