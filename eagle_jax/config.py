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
            known = ", ".join(self.KINDS)
            raise ValueError(f"rope scaling of kind {self.kind!r} is not known; expected one of {known}")
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
