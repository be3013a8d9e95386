"""Configurations of target models, with the field names of HuggingFace's `config.json`."""

import dataclasses

from eagle_jax.configs.by_layer import ByLayer
from eagle_jax.configs.facts import Experts, FamilyFacts, Rope, check_layers
from eagle_jax.configs.mixers import DeltaNet, Latent

__all__ = ["ByLayer", "DeltaNet", "Experts", "Latent", "LlamaConfig", "Rope"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig(FamilyFacts):
    """Configuration of a decoder of the Llama family: differences between its members are flags, not modules.

    `FamilyFacts` has the less common flags.

    Args:
        vocab_size, hidden_size, intermediate_size, num_hidden_layers: sizes.
        num_attention_heads, num_key_value_heads, head_dim: query heads, key/value heads (GQA), size of one head.
        max_position_embeddings: longest sequence that the model was trained for, in tokens.
        rms_norm_eps: epsilon of every RMSNorm.
        rope: rotary embedding.
        attention_bias: biases on q, k, v and o projections (Llama's `attention_bias`).
        qkv_bias: biases on q, k and v only (Qwen2 and EAGLE heads for it).
        qk_norm: an RMSNorm over each query and each key head, before it is rotated (Qwen3), or as `qk_norm_over` says.
        mlp_bias: biases on the MLP's projections.
        tie_word_embeddings: the output matrix is the embedding matrix.
        sliding_window: a token sees at most this many positions, itself included; None sees all.
        full_attention_layers: layers without the window, in ascending order.
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
        head_configs = (self,) if self.by_layer is None else (self, self.by_layer)
        for heads in (part.num_key_value_heads for part in head_configs):
            if self.num_attention_heads % heads:
                raise ValueError(
                    f"num_attention_heads={self.num_attention_heads} is not a multiple of num_key_value_heads={heads}"
                )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary embedding turns pairs")
        for rope in (self.rope, self.local_rope):
            for head_dim in (part.head_dim for part in head_configs):
                if rope is not None:
                    rope.check(head_dim)
        self.check_facts()
        check_layers("no_rope_layers", self.no_rope_layers, self.num_hidden_layers)
        check_layers("full_attention_layers", self.full_attention_layers, self.num_hidden_layers)
        if self.by_layer is not None:
            self.by_layer.check([self.window(i) is not None for i in range(self.num_hidden_layers)])
        if self.delta_net is not None:
            check_layers("layers of linear attention", self.delta_net.layers, self.num_hidden_layers)
            if len(self.delta_net.layers) == self.num_hidden_layers:
                raise ValueError("linear attention in all layers; expected one with attention at least")
        if self.experts is not None:
            check_layers("mlp_only_layers", self.experts.mlp_only_layers, self.num_hidden_layers)
            if self.mlp_bias:
                raise ValueError("mlp_bias=True in a model of experts; expected false: experts have no biases")

    def window(self, layer: int) -> int | None:
        """Returns the number of positions that a token sees in this layer, itself included; None for all."""
        return None if layer in self.full_attention_layers else self.sliding_window

    def rope_of(self, layer: int) -> Rope | None:
        """Returns the rotary embedding of this layer; None if it has none."""
        if not self.rotates(layer):
            return None
        return self.rope if self.local_rope is None or self.window(layer) is None else self.local_rope

    def rotates(self, layer: int) -> bool:
        """Returns whether this layer rotates queries and keys."""
        return layer not in self.no_rope_layers

    @property
    def attention_scale(self) -> float:
        """Factor of the attention scores."""
        return self.head_dim**-0.5 if self.attention_multiplier is None else self.attention_multiplier

    def is_recurrent(self, layer: int) -> bool:
        """Returns whether this layer has a state of constant size instead of attention."""
        return self.delta_net is not None and layer in self.delta_net.layers

    def is_sparse(self, layer: int) -> bool:
        """Returns whether this layer has experts."""
        return self.experts is not None and layer not in self.experts.mlp_only_layers

    def layer(self, layer: int) -> "LlamaConfig":
        """Returns the config with the heads and the MLP width of one layer."""
        part = self.by_layer
        if part is None:
            return self
        width = self.intermediate_size * (2 if part.wide_mlp and self.kv_layer(layer) != layer else 1)
        heads_config = self if self.window(layer) is not None else part
        size, heads = heads_config.head_dim, heads_config.num_key_value_heads
        return dataclasses.replace(self, intermediate_size=width, head_dim=size, num_key_value_heads=heads)

    def kv_layer(self, layer: int) -> int:
        """Returns the layer whose keys and values this layer attends to, usually itself."""
        first = self.num_hidden_layers - (0 if self.by_layer is None else self.by_layer.num_kv_shared_layers)
        if layer < first:
            return layer
        same_kind = (i for i in range(first) if (self.window(i) is None) == (self.window(layer) is None))
        return max(same_kind)

    def kv_of(self, layer: int) -> str:
        """Returns which of the key and value projections the layer has: `both`, `keys` (values equal keys), `none`."""
        if self.kv_layer(layer) != layer:
            return "none"
        are_values = self.by_layer is not None and self.by_layer.keys_as_values and self.window(layer) is None
        return "keys" if are_values else "both"

    @property
    def layer_input_size(self) -> int:
        """Size of the per-layer token embeddings; 0 for none."""
        return 0 if self.by_layer is None else self.by_layer.input_size

    @property
    def scales_layers(self) -> bool:
        """Whether each layer's output is multiplied by a scalar parameter."""
        return self.by_layer is not None and self.by_layer.scaled

    @property
    def head_dims(self) -> int | tuple[int, ...]:
        """Size of one head: an int for all layers, or a tuple by layer."""
        if self.by_layer is None:
            return self.head_dim
        return tuple(self.layer(i).head_dim for i in range(self.num_hidden_layers))
