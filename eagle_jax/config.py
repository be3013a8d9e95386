"""Configurations of target models and draft heads, with the field names of HuggingFace's `config.json`."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding: base angle and how it is stretched beyond the training length.

    Args:
        theta: base of the angles (`rope_theta`).
        kind: `default`, `linear`, `dynamic` (NTK by length), `llama3` or `yarn`, as in transformers' `rope_scaling`.
        factor: stretch of the context (every kind but `default`).
        original_max_position_embeddings: context before stretching (`dynamic`, `llama3`, `yarn`).
        low_freq_factor, high_freq_factor: band limits of `llama3`.
        beta_fast, beta_slow, truncate: band limits of `yarn`, and whether they are rounded to whole dimensions.
        attention_factor: scale of cos and sin (`yarn`; 1 otherwise).
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    KINDS = ("default", "linear", "dynamic", "llama3", "yarn")

    def __post_init__(self):
        if self.kind not in self.KINDS:
            names = ", ".join(self.KINDS)
            raise ValueError(f"rope scaling of kind {self.kind!r} is not known; expected one of {names}")
        if self.kind in ("dynamic", "llama3", "yarn") and self.original_max_position_embeddings is None:
            raise ValueError(f"rope scaling {self.kind!r} needs original_max_position_embeddings")
        if self.kind == "llama3" and (self.low_freq_factor is None or self.high_freq_factor is None):
            raise ValueError("rope scaling 'llama3' needs low_freq_factor and high_freq_factor")
        if self.theta <= 0 or self.factor <= 0:
            raise ValueError(f"rope theta and factor must be positive; got theta={self.theta}, factor={self.factor}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
    """Sparse experts in place of the MLP: a router sends each token through a few of them.

    Args:
        num_experts, num_experts_per_tok: how many there are, and through how many each token goes.
        moe_intermediate_size: width of one expert.
        norm_topk_prob: scale the probabilities of a token's experts to sum to 1.
        mlp_only_layers: layers that keep the dense MLP, in ascending order.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    mlp_only_layers: tuple[int, ...] = ()

    def __post_init__(self):
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok} of num_experts={self.num_experts}; "
                "expected at least 1, and no more than there are"
            )
        if self.moe_intermediate_size < 1:
            raise ValueError(f"moe_intermediate_size={self.moe_intermediate_size}; expected at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma:
    """What Gemma does otherwise than Llama.

    Always: norms multiply by `1 + scale`; attention and MLP have a norm behind them too; embeddings are multiplied by
    `sqrt(hidden_size)`; the MLP's activation is GELU, by tanh. And by its numbers:

    Args:
        query_pre_attn_scalar: attention scores are divided by its root, not by that of `head_dim`.
        attn_logit_softcapping, final_logit_softcapping: scores and logits become `cap * tanh(x / cap)`; None leaves
            them.
        local_rope: rotary embedding of the layers with a window; None is that of the others (Gemma 2).
    """

    query_pre_attn_scalar: int
    attn_logit_softcapping: float | None
    final_logit_softcapping: float | None
    local_rope: Rope | None

    def __post_init__(self):
        for name in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value}; expected a positive number")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """A decoder of the Llama family; what varies within the family is a flag here, not another module.

    Args:
        vocab_size, hidden_size, intermediate_size, num_hidden_layers: sizes.
        num_attention_heads, num_key_value_heads, head_dim: query heads, key/value heads (GQA), size of one head.
        max_position_embeddings: longest sequence the model is meant for, in tokens.
        rms_norm_eps: epsilon of every RMSNorm.
        rope: rotary embedding.
        attention_bias: biases on q, k, v and o projections (Llama's `attention_bias`).
        qkv_bias: biases on q, k and v only (Qwen2, and the EAGLE heads trained for it).
        qk_norm: an RMSNorm over each query and each key head, before it is rotated (Qwen3).
        mlp_bias: biases on the MLP's projections.
        tie_word_embeddings: the output matrix is the embedding matrix.
        sliding_window: a token sees at most this many positions, itself included; None sees all.
        full_attention_layers: layers whose tokens see all positions although there is a window, in ascending order.
        experts: sparse experts in place of the MLP (Mixtral, Qwen3-MoE); None is a dense model.
        gemma: what Gemma does otherwise; None is Llama's way.
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
    gemma: Gemma | None = None

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
        _check_layers("full_attention_layers", self.full_attention_layers, self.num_hidden_layers)
        if self.experts is not None:
            _check_layers("mlp_only_layers", self.experts.mlp_only_layers, self.num_hidden_layers)
            if self.mlp_bias:
                raise ValueError("mlp_bias=True in a model of experts; expected false: experts have no biases")

    def window(self, layer: int) -> int | None:
        """How many positions a token of this layer sees, itself included; None sees all."""
        return None if layer in self.full_attention_layers else self.sliding_window

    def rope_of(self, layer: int) -> Rope:
        """The rotary embedding of this layer."""
        local = None if self.gemma is None else self.gemma.local_rope
        return self.rope if local is None or self.window(layer) is None else local

    def is_sparse(self, layer: int) -> bool:
        """Whether this layer has experts."""
        return self.experts is not None and layer not in self.experts.mlp_only_layers


def _check_layers(name: str, layers: tuple[int, ...], count: int) -> None:
    """Refuses layers that are not there, or not in ascending order."""
    if any(not 0 <= layer < count for layer in layers) or list(layers) != sorted(set(layers)):
        raise ValueError(f"{name}={layers}; expected ascending layer numbers from 0 to {count - 1}")
