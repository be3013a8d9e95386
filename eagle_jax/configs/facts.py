"""Parts of a target's configuration: rotary embedding, experts, and the families' differences from Llama."""

import dataclasses
from typing import Any

from eagle_jax.configs.by_layer import ByLayer
from eagle_jax.configs.mixers import DeltaNet, Latent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding: base angle and scaling beyond the training length.

    Args:
        theta: base of the angles (`rope_theta`).
        kind: `default`, `linear`, `dynamic` (NTK by length), `ntk` (NTK by a constant: Hunyuan), `llama3`, `yarn`,
            `longrope` or `proportional` (Gemma 4), as in transformers' `rope_scaling`.
        factor: stretch of the context (every kind but `default` and `longrope`).
        original_max_position_embeddings: context before stretching (`dynamic`, `llama3`, `yarn`, `longrope`).
        low_freq_factor, high_freq_factor: band limits of `llama3`.
        beta_fast, beta_slow, truncate: band limits of `yarn`, and whether they are rounded to whole dimensions.
        attention_factor: scale of cos and sin (`yarn`, `longrope`; 1 otherwise).
        short_factor, long_factor: divisors of each pair's frequency up to the original context and beyond it
            (`longrope`).
        partial_rotary_factor: fraction of each head that is rotated, its first dimensions; with `proportional` the
            first dimensions of each half, by the angles of a whole head.
        interleaved: pairs are neighbours (x_2i, x_2i+1), not halves (Ernie 4.5, Llama 4, DeepSeek).
        query_beta: queries at position p are multiplied by `1 + query_beta * log(1 + p // original)` (Ministral 3).
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
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    partial_rotary_factor: float = 1.0
    interleaved: bool = False
    query_beta: float = 0.0

    KINDS = ("default", "linear", "dynamic", "ntk", "llama3", "yarn", "longrope", "proportional")

    def __post_init__(self):
        if self.kind not in self.KINDS:
            names = ", ".join(self.KINDS)
            raise ValueError(f"rope scaling of kind {self.kind!r} is not known; expected one of {names}")
        needs_original = self.kind in ("dynamic", "llama3", "yarn", "longrope") or self.query_beta
        if needs_original and self.original_max_position_embeddings is None:
            raise ValueError(f"rope scaling {self.kind!r} needs original_max_position_embeddings")
        if self.kind == "llama3" and (self.low_freq_factor is None or self.high_freq_factor is None):
            raise ValueError("rope scaling 'llama3' needs low_freq_factor and high_freq_factor")
        if self.theta <= 0 or self.factor <= 0:
            raise ValueError(f"rope theta and factor must be positive; got theta={self.theta}, factor={self.factor}")
        if not 0 < self.partial_rotary_factor <= 1:
            raise ValueError(f"partial_rotary_factor={self.partial_rotary_factor}; expected more than 0, at most 1")

    def rotated(self, head_dim: int) -> int:
        """Returns the number of rotated dimensions of a head; the angle of some may be 0 (`proportional`)."""
        return head_dim if self.kind == "proportional" else int(head_dim * self.partial_rotary_factor)

    def for_heads(self) -> "Rope":
        """Returns the rotary embedding of draft heads: this one if Llama supports it, else one with the same base."""
        is_like_llama = self.partial_rotary_factor == 1 and not self.interleaved and not self.query_beta
        return (
            self if is_like_llama and self.kind not in ("ntk", "longrope", "proportional") else Rope(theta=self.theta)
        )

    def check(self, head_dim: int) -> None:
        """Raises ValueError if heads of this size cannot be rotated so."""
        size = self.rotated(head_dim)
        if size % 2 or not size:
            raise ValueError(f"{size} of the {head_dim} dimensions of a head are rotated; expected pairs")
        for name in ("short_factor", "long_factor"):
            factors = getattr(self, name)
            if self.kind == "longrope" and (len(factors) != size // 2 or min(factors) <= 0):
                raise ValueError(f"{name} of {len(factors)} numbers; expected {size // 2}, all positive")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
    """Sparse experts in place of the MLP: a router sends each token through a few of them.

    Args:
        num_experts, num_experts_per_tok: number of experts, in all and for each token.
        moe_intermediate_size: width of one expert.
        norm_topk_prob: a token's expert weights are scaled to sum to 1.
        mlp_only_layers: layers that keep the dense MLP, in ascending order.
        scores: `softmax` over all experts, or `sigmoid` of each logit.
        correction_bias: the router has a bias for choosing experts that does not enter their weights (`sigmoid`).
        num_groups, topk_groups: number of expert groups, and how many of them a token may use: the groups whose two
            best scores have the largest sums.
        routed_scaling_factor: factor of the expert weights.
        shared_intermediate_size: width of an expert that every token uses; 0 for none.
        scales_input: an expert's weight multiplies its input, not its output (Llama 4).
        shared_gate: the shared expert's output is multiplied by the sigmoid of a logit per token (Qwen3-Next).
        router_bias, bias: biases of the router and of the experts' projections (gpt-oss).
        parallel_mlp: an MLP reads the residual stream in parallel with the experts. Each has its own norms, and the
            router a norm without a scale (Gemma 4).
        router_scale: the router's input is multiplied by a vector.
        expert_scale: an expert's weight is multiplied by a scalar parameter of the expert.
        swiglu_limit, swiglu_alpha: `gate` is clamped from above and `up` to [-limit, limit], and the activation is
            `gate * sigmoid(alpha * gate) * (up + 1)` (gpt-oss); a limit of None is `silu(gate) * up`.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    mlp_only_layers: tuple[int, ...] = ()
    scores: str = "softmax"
    correction_bias: bool = False
    num_groups: int = 1
    topk_groups: int = 1
    routed_scaling_factor: float = 1.0
    shared_intermediate_size: int = 0
    scales_input: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False
    parallel_mlp: bool = False
    router_scale: bool = False
    expert_scale: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.702

    def __post_init__(self):
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok} of num_experts={self.num_experts}; "
                "expected at least 1, and no more than there are"
            )
        if self.moe_intermediate_size < 1:
            raise ValueError(f"moe_intermediate_size={self.moe_intermediate_size}; expected at least 1")
        if self.shared_gate and not self.shared_intermediate_size:
            raise ValueError("shared_gate=True without a shared expert; expected a shared_intermediate_size")
        if self.scores not in ("softmax", "sigmoid"):
            raise ValueError(f"a router with scores={self.scores!r}; expected 'softmax' or 'sigmoid'")
        size, rest = divmod(self.num_experts, max(self.num_groups, 1))
        enough = self.num_experts_per_tok <= size * self.topk_groups
        if rest or not 1 <= self.topk_groups <= self.num_groups or not enough or (self.num_groups > 1 and size < 2):
            raise ValueError(
                f"{self.topk_groups} of {self.num_groups} groups of num_experts={self.num_experts}; expected groups "
                f"of one size, at least two experts each, and {self.num_experts_per_tok} experts in those chosen"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FamilyFacts:
    """Differences of families from Llama; the defaults are Llama's, and most draft heads'.

    Args:
        norms: places of the norms: `before` attention and MLP, `around` them (Gemma), or `after` them (OLMo 2).
        norm_plus_one: norms multiply by `1 + scale` (Gemma).
        activation: activation of the MLP's gate: `silu`, or `gelu_tanh` (Gemma).
        embedding_multiplier: factor of the embeddings; Gemma's is rounded to the dtype of the weights.
        residual_multiplier: factor of the outputs of attention and MLP (Granite).
        attention_multiplier: factor of the attention scores; None is `head_dim ** -0.5`.
        logits_scaling: divisor of the logits (Granite).
        attn_logit_softcapping, final_logit_softcapping: scores and logits become `cap * tanh(x / cap)`; None for no cap
            (Gemma 2).
        qk_norm_over: with `qk_norm`, the scope of each norm: a `head` before rotation, a `rotated_head` (Hunyuan), or
            the whole `projection` (OLMo 2); `rotated_head_unscaled` has no scale, and only in layers with rotation
            (Llama 4).
        v_norm: each value head has a norm without a scale (Gemma 4).
        gated: each head's output is multiplied by the sigmoid of a gate, whose logits `q_proj` gives after the head's
            queries (Qwen3-Next).
        delta_net: Gated DeltaNet in some layers; None for attention in all.
        latent: latent attention (DeepSeek-V3), where `head_dim` is the rotated part of a head; None for ordinary
            attention.
        sinks: each query head has an extra logit in the softmax, without a value (gpt-oss).
        local_rope: rotary embedding of layers with a window; None for the same as in the others.
        no_rope_layers: layers without rotation, in ascending order (SmolLM3).
        no_rope_query_beta, no_rope_query_step: in layers without rotation, queries at position p are multiplied by
            `1 + beta * log(1 + (p + 1) // step)` (Llama 4).
        chunked: `sliding_window` is the length of chunks instead: a token sees its own chunk (Llama 4).
        by_layer: differences between layers (Gemma 4); None if layers are alike.
        layout: names and joined tensors in files: `llama`, or another key of `converters.families.tensors.TENSORS`.
    """

    norms: str = "before"
    norm_plus_one: bool = False
    activation: str = "silu"
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float | None = None
    logits_scaling: float = 1.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    qk_norm_over: str = "head"
    v_norm: bool = False
    gated: bool = False
    delta_net: DeltaNet | None = None
    latent: Latent | None = None
    sinks: bool = False
    local_rope: Rope | None = None
    no_rope_layers: tuple[int, ...] = ()
    no_rope_query_beta: float = 0.0
    no_rope_query_step: int = 1
    chunked: bool = False
    by_layer: ByLayer | None = None
    layout: str = "llama"

    CHOICES = {
        "norms": ("before", "around", "after"),
        "activation": ("silu", "gelu_tanh"),
        "qk_norm_over": ("head", "rotated_head", "rotated_head_unscaled", "projection"),
    }
    POSITIVE = (
        ("no_rope_query_step",)
        + ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
        + (
            "attn_logit_softcapping",
            "final_logit_softcapping",
        )
    )

    def check_facts(self) -> None:
        """Raises ValueError for an unsupported value."""
        for name, choices in self.CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}; expected one of {', '.join(choices)}")
        for name in self.POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value}; expected a positive number")

    @property
    def unlike_llama(self) -> dict[str, Any]:
        """The fields with other values than Llama's."""
        facts = self.of_llama().items()
        return {name: value for name, default in facts if (value := getattr(self, name)) != default}

    @staticmethod
    def of_llama() -> dict[str, Any]:
        """Returns the defaults, which are Llama's values."""
        return {fact.name: fact.default for fact in dataclasses.fields(FamilyFacts)}

    @property
    def scales_edges(self) -> bool:
        """Whether embeddings or logits are scaled or capped, which heads that share the tables cannot do."""
        scaled = self.embedding_multiplier != 1 or self.logits_scaling != 1
        return scaled or self.final_logit_softcapping is not None


def check_layers(name: str, layers: tuple[int, ...], count: int) -> None:
    """Raises ValueError for layer numbers that are out of range or not ascending."""
    if any(not 0 <= layer < count for layer in layers) or list(layers) != sorted(set(layers)):
        raise ValueError(f"{name}={layers}; expected ascending layer numbers from 0 to {count - 1}")
