"""Base class of all kinds of heads, for code that loads, saves and trains any of them."""

import abc
import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.layout import for_files
from eagle_jax.struct import static

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class AnyHead(abc.ABC):
    """A small model that guesses what the target is about to say, with its weights; implementations are frozen pytrees.

    Attributes:
        params: weights, named as in HuggingFace's checkpoints.
        config: sizes and flags.
        vocabulary: target ids of the tokens that the head drafts, ascending; None drafts the whole vocabulary.
    """

    params: Params
    config: Any = static()
    vocabulary: Int[Array, "d"] | None = None

    @property
    def kind(self) -> str:
        """The head's key in `HEAD_KINDS`."""
        return self.config.kind

    @property
    def layers(self) -> LlamaConfig | None:
        """The config of the decoder layers, if it has some that lie on a mesh as the target's do."""
        return None

    @property
    def num_drafted(self) -> int | None:
        """Maximum number of drafted tokens; None for autoregressive heads, which have no limit."""
        return None

    @property
    def max_children(self) -> int | None:
        """Different tokens that may follow another one in its trees; None without a limit."""
        return None

    @property
    def stored_params(self) -> Params:
        """The parameters as files have them."""
        return for_files(self.params)

    @property
    @abc.abstractmethod
    def taps(self) -> tuple[int, ...]:
        """Target layers whose entering residual stream it reads."""

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype:
        """Dtype of the weights that are never packed or quantized."""

    @property
    @abc.abstractmethod
    def draft_vocab_size(self) -> int:
        """Number of different tokens that the head can draft."""

    @property
    @abc.abstractmethod
    def head_dim(self) -> int:
        """Size of one attention head, for `layout.for_decoding`; 1 in heads without attention."""

    @property
    @abc.abstractmethod
    def module(self) -> nn.Module:
        """The layers."""

    def target_ids(self, tokens: Int[Array, "*rows"]) -> Int[Array, "*rows"]:
        """Returns the target ids of draft ids."""
        return tokens if self.vocabulary is None else jnp.take(self.vocabulary, tokens, axis=0)

    def drafted_part(self, values: Float[Array, "*rows v"]) -> Float[Array, "*rows d"]:
        """Returns the values of the draft vocabulary, from values over the target's."""
        return values if self.vocabulary is None else jnp.take(values, self.vocabulary, axis=-1)

    def _apply(self, *args: Any, method: Any = None) -> Any:
        return self.module.apply({"params": self.params}, *args, method=method)
