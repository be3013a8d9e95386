"""A loaded model: a target, its tokenizer and settings, and its drafters."""

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
    """A target with its tokenizer and settings, and its drafters.

    Attributes:
        target: the model whose text is generated.
        head: its draft head or heads, if any.
        tokenizer: HuggingFace tokenizer; None if the folder has none (prompts are token ids then).
        stop_ids: tokens that end an answer.
        context: maximum number of tokens of prompt and answer together.
        sharding: the mesh that it is sharded over; None for one device.
        draft: a small draft model, if any.
        datastore: texts to draft from, if any.
        generation: settings of the model's `generation_config.json`, under the names of `generate`'s options. They are
            not applied automatically: `generate(model, prompt, **model.generation)`.
        calibration: acceptance rates of the head's draft tokens, if its folder has them.
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
        """Name of the dtype of the target's weights, or of its activations if it states no other."""
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
        """The target's weights that are packed for a backend."""
        leaves = jax.tree.leaves(self.target, is_leaf=ops.is_leaf)
        return tuple(leaf for leaf in leaves if isinstance(leaf, ops.PackedWeight))

    @functools.cached_property
    def is_quantized(self) -> bool:
        """Whether any of the target's weights is quantized, in its files or while loading."""
        return any(_is_quantized(leaf) for leaf in jax.tree.leaves(self.target, is_leaf=ops.is_leaf))

    @functools.cached_property
    def drafters(self) -> dict[Any, Any]:
        """Cache of drafters by their arguments: compiled programs are reused for the same objects."""
        return {}

    def __repr__(self) -> str:
        """Returns one line without weights, which would have to be copied from the device."""
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
