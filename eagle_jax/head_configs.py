"""Sizes of draft heads."""

import dataclasses

from eagle_jax.config import LlamaConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """An EAGLE-1/EAGLE-2 draft head: `fc(concat[embedding ; feature])`, then decoder layers, the first without input
    norm.

    Args:
        layers: the decoder layers, described as a Llama (`num_hidden_layers` is 1 in every published head).
            `vocab_size`, `hidden_size` are the target's.
        fc_bias: whether `fc` has a bias (config key `bias`; the tensors decide).
        draft_vocab_size: tokens that the head drafts, with an output matrix of its own; None drafts all, with the
            target's.
    """

    layers: LlamaConfig
    fc_bias: bool
    draft_vocab_size: int | None = None

    def __post_init__(self):
        _check_draft(self.layers, self.layers.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3Config:
    """An EAGLE-3 draft head: `fc` of several of the target's residual streams, then decoder layers, the first over
    `concat[embedding ; feature]`, then an output matrix of its own.

    Args:
        layers: the decoder layers, described as a Llama (`num_hidden_layers` is 1 in every published head).
            `vocab_size` is the target's, everything else the draft's own.
        taps: target layers whose entering residual stream is read, counted from 0, in the order in which `fc` reads
            them (low, mid, high); the number of target layers means what leaves the last, before the final norm.
        target_hidden_size: width of the target's residual stream.
        draft_vocab_size: tokens that the head drafts.
        norm_before_residual: the first layer adds to the normed feature instead of the feature as it is.
        norm_before_fc: one RMSNorm over the concatenated taps before `fc`.
        fc_norm: an RMSNorm over each tap before `fc`.
        norm_output: the next draft step reads the output after the final norm instead of before it (EAGLE-3.1).
        own_embedding: an embedding table of its own instead of the target's.
    """

    layers: LlamaConfig
    taps: tuple[int, ...]
    target_hidden_size: int
    draft_vocab_size: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    own_embedding: bool = False

    def __post_init__(self):
        if not self.taps or any(tap < 0 for tap in self.taps):
            raise ValueError(f"taps={self.taps}; expected at least one target layer, counted from 0")
        if self.target_hidden_size < 1:
            raise ValueError(f"target_hidden_size={self.target_hidden_size}; expected at least 1")
        _check_draft(self.layers, self.draft_vocab_size)
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm are both set; expected at most one norm of the taps before fc")
        if not self.own_embedding and self.layers.hidden_size != self.target_hidden_size:
            raise ValueError(
                f"a head of width {self.layers.hidden_size} cannot read the embeddings of a target of width "
                f"{self.target_hidden_size}; it needs its own (own_embedding)"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """Medusa heads: each reads the target's final hidden state, through blocks, and has an output matrix of its own.

    Args:
        hidden_size, vocab_size: the target's.
        num_heads: tokens drafted ahead, one a head (`medusa_num_heads`).
        num_layers: residual blocks in each (`medusa_num_layers`).
    """

    hidden_size: int
    vocab_size: int
    num_heads: int
    num_layers: int

    def __post_init__(self):
        _check_sizes(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HydraConfig:
    """Hydra heads: as Medusa's, but head k also reads the embeddings of the k + 1 tokens before the one it drafts.

    Args:
        hidden_size, vocab_size: the target's.
        num_heads: tokens drafted ahead, one a head (`hydra_num_heads`).
        num_layers: residual blocks in each (`hydra_num_layers`).
        prefix: a decoder layer that reads the text's final hidden states before the heads do (Hydra++,
            `hydra_head_arch` "prefix-mlp"), described as a Llama of one layer; None is the plain "mlp".
    """

    hidden_size: int
    vocab_size: int
    num_heads: int
    num_layers: int
    prefix: LlamaConfig | None = None

    def __post_init__(self):
        _check_sizes(self)
        if self.prefix is None:
            return
        _check_draft(self.prefix, self.vocab_size)
        if (self.prefix.hidden_size, self.prefix.num_hidden_layers) != (self.hidden_size, 1):
            raise ValueError(
                f"prefix has {self.prefix.num_hidden_layers} layers of width {self.prefix.hidden_size}; expected one "
                f"of width {self.hidden_size}, as wide as the heads"
            )


def _check_sizes(config: MedusaConfig | HydraConfig) -> None:
    for name in ("hidden_size", "vocab_size", "num_heads", "num_layers"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}; expected at least 1")


def _check_draft(layers: LlamaConfig, size: int) -> None:
    """Refuses a draft vocabulary that is empty or larger than the target's, and layers that no head has."""
    if not 1 <= size <= layers.vocab_size:
        raise ValueError(
            f"draft_vocab_size={size}; expected 1 to {layers.vocab_size}, the target's vocab_size: a head drafts some "
            "of the target's tokens or all"
        )
    if layers.experts is not None:
        raise ValueError("the layers of a draft head have experts; expected dense ones, whatever the target's are")
    if layers.gemma is not None:
        raise ValueError("the layers of a draft head are Gemma's; expected Llama's, whatever the target's are")
    if layers.full_attention_layers:
        raise ValueError(
            f"full_attention_layers={layers.full_attention_layers} in a draft head; its layers share one window or none"
        )
