"""Reads and writes the experts of a `config.json`."""

import dataclasses
from typing import Any

from eagle_jax.configs.target import Experts, LlamaConfig
from eagle_jax.converters.families.family import Entries
from eagle_jax.converters.hf.values import flag, integer, number

# Keys of every family that has experts.
ROUTED = frozenset({"num_experts", "num_local_experts", "num_experts_per_tok"})

# Keys of DeepSeek-V3's router and similar routers.
BY_GROUPS = frozenset({"n_routed_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"}) | {
    "n_shared_experts",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
    "norm_topk_prob",
}


def mixtral(entries: Entries) -> Experts:
    """Reads experts as wide as the MLP would be, whose weights sum to 1."""
    return Experts(**_routed(entries, 8, "intermediate_size"), norm_topk_prob=True)


def olmoe(entries: Entries) -> Experts:
    """Reads experts as wide as the MLP would be; whether their weights sum to 1 is stated."""
    return Experts(**_routed(entries, 64, "intermediate_size"), norm_topk_prob=flag(entries, "norm_topk_prob", False))


def qwen3_moe(entries: Entries) -> Experts:
    """Reads experts of a model in which some layers may be dense."""
    return Experts(
        **_routed(entries, 128, "moe_intermediate_size"),
        norm_topk_prob=flag(entries, "norm_topk_prob", False),
        mlp_only_layers=_dense_layers(entries, integer(entries, "num_hidden_layers")),
    )


def gpt_oss(entries: Entries) -> Experts:
    """Reads experts with biases and a clamped SwiGLU.

    A softmax over the chosen logits is one over all of them, renormalised to sum to 1 over the chosen.
    """
    return Experts(
        **_routed(entries, 128, "intermediate_size"),
        norm_topk_prob=True,
        router_bias=True,
        bias=True,
        swiglu_limit=number(entries, "swiglu_limit"),
        swiglu_alpha=number(entries, "swiglu_alpha"),
    )


def minimax_m2(entries: Entries) -> Experts:
    """Reads experts chosen by sigmoids and a correction."""
    routed = _routed(entries, 256, "intermediate_size")
    return Experts(**routed, norm_topk_prob=True, scores="sigmoid", correction_bias=True)


def glm4_moe(entries: Entries) -> Experts:
    """Reads experts with DeepSeek-V3's router and shared experts; the first layers are dense."""
    width, count = integer(entries, "moe_intermediate_size"), integer(entries, "n_routed_experts")
    if (other := entries.get("num_local_experts", count)) != count:  # another name of it in transformers
        raise ValueError(f"n_routed_experts={count} and num_local_experts={other!r}; expected the two to agree")
    return Experts(
        num_experts=count,
        num_experts_per_tok=integer(entries, "num_experts_per_tok"),
        moe_intermediate_size=width,
        norm_topk_prob=flag(entries, "norm_topk_prob", True),
        mlp_only_layers=tuple(
            range(min(integer(entries, "first_k_dense_replace"), integer(entries, "num_hidden_layers")))
        ),
        scores="sigmoid",
        correction_bias=True,
        num_groups=integer(entries, "n_group"),
        topk_groups=integer(entries, "topk_group"),
        routed_scaling_factor=number(entries, "routed_scaling_factor"),
        shared_intermediate_size=width * integer(entries, "n_shared_experts"),
    )


def glm4_moe_lite(entries: Entries) -> Experts:
    """Reads GLM-4.5's experts; layers are named one by one, or all but the first have experts."""
    layers, types = integer(entries, "num_hidden_layers"), entries.get("mlp_layer_types")
    types = ["dense", *["sparse"] * (layers - 1)] if types is None else types
    if not isinstance(types, list) or len(types) != layers or any(kind not in ("dense", "sparse") for kind in types):
        raise ValueError(f"mlp_layer_types={types!r}; expected 'dense' or 'sparse' for each of {layers} layers")
    dense = tuple(i for i, kind in enumerate(types) if kind == "dense")
    return dataclasses.replace(glm4_moe({**entries, "first_k_dense_replace": 0}), mlp_only_layers=dense)


def qwen3_next(entries: Entries) -> Experts:
    """Reads Qwen3-MoE's experts, with a shared expert that has its own gate."""
    width = integer(entries, "shared_expert_intermediate_size")
    return dataclasses.replace(qwen3_moe(entries), shared_intermediate_size=width, shared_gate=True)


def qwen3_5_moe(entries: Entries) -> Experts:
    """Reads Qwen3-Next's experts, in all layers; a token's weights sum to 1."""
    return qwen3_next({**entries, "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1})


def llama4(entries: Entries) -> Experts:
    """Reads experts whose inputs are scaled by sigmoids of the best logits.

    A shared expert is as wide as each of them; some layers are dense.
    """
    layers, sparse = integer(entries, "num_hidden_layers"), entries.get("moe_layers")
    if sparse is None:
        step = integer(entries, "interleave_moe_layer_step")
        if step < 1:
            raise ValueError(f"interleave_moe_layer_step={step}; expected at least 1")
        sparse = [*range(step - 1, layers, step)]
    if not isinstance(sparse, list) or any(i not in range(layers) for i in sparse):
        raise ValueError(f"moe_layers={sparse!r}; expected a list of layers from 0 to {layers - 1}")
    return Experts(
        **_routed(entries, 16, "intermediate_size"),
        norm_topk_prob=False,
        mlp_only_layers=tuple(i for i in range(layers) if i not in sparse),
        scores="sigmoid",
        shared_intermediate_size=integer(entries, "intermediate_size"),
        scales_input=True,
    )


def kinds_of(config: LlamaConfig) -> list[str]:
    """Returns the layer kinds in the form that `glm4_moe_lite` reads."""
    return ["sparse" if config.is_sparse(i) else "dense" for i in range(config.num_hidden_layers)]


def stated_by(experts: Experts) -> dict[str, Any]:
    """Returns the entries under every family's keys; a writer picks the keys of its family."""
    count, width = experts.num_experts, experts.moe_intermediate_size
    return {
        "num_experts": count,
        "num_local_experts": count,
        "n_routed_experts": count,
        "num_experts_per_tok": experts.num_experts_per_tok,
        "moe_intermediate_size": width,
        "norm_topk_prob": experts.norm_topk_prob,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(experts.mlp_only_layers),
        "first_k_dense_replace": len(experts.mlp_only_layers),
        "n_group": experts.num_groups,
        "topk_group": experts.topk_groups,
        "routed_scaling_factor": experts.routed_scaling_factor,
        "n_shared_experts": experts.shared_intermediate_size // width,
        "shared_expert_intermediate_size": experts.shared_intermediate_size,
        "swiglu_limit": experts.swiglu_limit,
        "swiglu_alpha": experts.swiglu_alpha,
    }


def _routed(entries: Entries, default: int, width: str) -> dict[str, Any]:
    return {
        "num_experts": _num_experts(entries, default),
        "num_experts_per_tok": integer(entries, "num_experts_per_tok"),
        "moe_intermediate_size": integer(entries, width),
    }


def _num_experts(entries: Entries, default: int) -> int:
    """Returns the number of experts, which has two names in transformers."""
    counts = [integer(entries, key) for key in ("num_experts", "num_local_experts") if key in entries] or [default]
    if len(set(counts)) > 1:
        raise ValueError(f"num_experts={counts[0]} and num_local_experts={counts[1]}; expected the two to agree")
    return counts[0]


def _dense_layers(entries: Entries, layers: int) -> tuple[int, ...]:
    """Returns the dense layers: `mlp_only_layers`, and all but every `decoder_sparse_step`-th layer."""
    dense_layers, step = entries["mlp_only_layers"], integer(entries, "decoder_sparse_step")
    if step < 1 or not isinstance(dense_layers, list) or any(i not in range(layers) for i in dense_layers):
        raise ValueError(
            f"mlp_only_layers={dense_layers!r} and decoder_sparse_step={step}; "
            f"expected a list of layers from 0 to {layers - 1}, and at least 1"
        )
    return tuple(i for i in range(layers) if i in dense_layers or (i + 1) % step)
