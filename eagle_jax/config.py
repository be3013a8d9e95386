"""Configurations of target models, with the field names of HuggingFace's `config.json`."""

import dataclasses

from eagle_jax.mixer_parts import DeltaNet, Latent
from eagle_jax.target_parts import Experts, FamilyFacts, Rope, check_layers

__all__ = ["DeltaNet", "Experts", "Latent", "LlamaConfig", "Rope"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig(FamilyFacts):
    """A decoder of the Llama family; what varies within the family is a flag here, not another module.

    `FamilyFacts` has the rarer ones.

    Args:
        vocab_size, hidden_size, intermediate_size, num_hidden_layers: sizes.
        num_attention_heads, num_key_value_heads, head_dim: query heads, key/value heads (GQA), size of one head.
        max_position_embeddings: longest sequence the model is meant for, in tokens.
        rms_norm_eps: epsilon of every RMSNorm.
        rope: rotary embedding.
        attention_bias: biases on q, k, v and o projections (Llama's `attention_bias`).
        qkv_bias: biases on q, k and v only (Qwen2, and the EAGLE heads trained for it).
        qk_norm: an RMSNorm over each query and each key head, before it is rotated (Qwen3), or as `qk_norm_over` says.
        mlp_bias: biases on the MLP's projections.
        tie_word_embeddings: the output matrix is the embedding matrix.
        sliding_window: a token sees at most this many positions, itself included; None sees all.
        full_attention_layers: layers whose tokens see all positions although there is a window, in ascending order.
        experts: sparse experts in place of the MLP (Mixtral, Qwen3-MoE); None is a dense model.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    attention_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    full_attention_layers: tuple[int, ...] = ()
    experts: Experts | None = None

    SIZES = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    )

    def __post_init__(self):
        for name in self.SIZES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; expected at least 1")
        if self.rms_norm_eps <= 0:
            raise ValueError(f"rms_norm_eps={self.rms_norm_eps}; expected a positive number")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window={self.sliding_window}; expected at least 1, or none to see everything")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary embedding turns pairs")
        for rope in (self.rope, self.local_rope):
            if rope is not None:
                rope.check(self.head_dim)
        self.check_facts()
        check_layers("no_rope_layers", self.no_rope_layers, self.num_hidden_layers)
        check_layers("full_attention_layers", self.full_attention_layers, self.num_hidden_layers)
        if self.delta_net is not None:
            check_layers("layers of linear attention", self.delta_net.layers, self.num_hidden_layers)
            if len(self.delta_net.layers) == self.num_hidden_layers:
                raise ValueError("linear attention in all layers; expected one with attention at least")
        if self.experts is not None:
            check_layers("mlp_only_layers", self.experts.mlp_only_layers, self.num_hidden_layers)
            if self.mlp_bias:
                raise ValueError("mlp_bias=True in a model of experts; expected false: experts have no biases")

    def window(self, layer: int) -> int | None:
        """How many positions a token of this layer sees, itself included; None sees all."""
        return None if layer in self.full_attention_layers else self.sliding_window

    def rope_of(self, layer: int) -> Rope | None:
        """The rotary embedding of this layer; None rotates nothing."""
        if not self.rotates(layer):
            return None
        return self.rope if self.local_rope is None or self.window(layer) is None else self.local_rope

    def rotates(self, layer: int) -> bool:
        """Whether this layer rotates queries and keys."""
        return layer not in self.no_rope_layers

    @property
    def attention_scale(self) -> float:
        """What attention scores are multiplied by."""
        return self.head_dim**-0.5 if self.attention_multiplier is None else self.attention_multiplier

    def is_recurrent(self, layer: int) -> bool:
        """Whether this layer has a state that does not grow with the text, and no attention."""
        return self.delta_net is not None and layer in self.delta_net.layers

    def is_sparse(self, layer: int) -> bool:
        """Whether this layer has experts."""
        return self.experts is not None and layer not in self.experts.mlp_only_layers
