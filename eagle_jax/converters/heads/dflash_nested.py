"""Converts the `config.json` of a DFlash head between vLLM speculators' format ("dflash") and the authors'.

    speculators_model_type        dflash
    transformer_layer_config      Qwen3's keys
    block_size, mask_token_id, aux_hidden_state_layer_ids (entered), draft_vocab_size, sample_from_anchor
    sliding_window_non_causal     true: layers with a window see the whole block; false or missing: they are causal

Tensor names are the authors'. A head with a draft vocabulary has an output matrix, d2t and t2d; the embedding and
verifier_* are the target's.
"""

from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.converters.families.config import config_to_hf
from eagle_jax.converters.heads import dflash_edges
from eagle_jax.converters.heads.eagle_entries import Verifier
from eagle_jax.converters.heads.entries import HEAD_TYPE, LAYER_CONFIG, OUTER_IGNORED, verifier_keys
from eagle_jax.converters.hf import values
from eagle_jax.converters.hf.keys import Tables, check_head

METHOD, CLASSES = "dflash", ("DFlashSpeculator", "DFlashDraftModel")
ENTRY_LAYERS = "aux_hidden_state_layer_ids"
VERIFIER_TENSORS = r"verifier_.*"

_NOT_CAUSAL = "sliding_window_non_causal"
_COPIED = ("block_size", "mask_token_id", ENTRY_LAYERS, "draft_vocab_size", "target_hidden_size", "sample_from_anchor")
_FIXED: Mapping[str, tuple[Any, ...]] = {"projector_type": ("dflash", None), "shift_label": (False, None)}
# Settings of training, and of Domino's head, which `projector_type` rules out.
_IGNORED = OUTER_IGNORED | frozenset(
    """
    max_anchors num_anchors auf pure_draft_prefix_len emb_dim gru_hidden_dim lambda_base_start lambda_base_decay_ratio
    """.split()
)

# transformers omits Qwen3's defaults from `transformer_layer_config`. The rotary base has no default here.
_DEFAULTS: Mapping[str, Any] = {
    **{"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768},
    **{"rms_norm_eps": 1e-6, "use_sliding_window": False, "hidden_act": "silu"},
}


def flattened(entries: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """Converts a nested config to the authors' flat form. Unknown outer keys are refused.

    Args:
        architecture: the class that the authors' config names.

    Raises:
        ValueError: another method's config, or an unknown key.
    """
    classes = entries.get("architectures") or [CLASSES[0]]
    if entries[HEAD_TYPE] != METHOD or not isinstance(classes, list) or not set(classes) <= set(CLASSES):
        raise ValueError(
            f"{HEAD_TYPE}={entries[HEAD_TYPE]!r} with architectures {classes!r}; expected {METHOD!r} and one of "
            f"{list(CLASSES)!r}"
        )
    inner = entries.get(LAYER_CONFIG)
    if not isinstance(inner, Mapping):
        raise ValueError(f"{LAYER_CONFIG} is {inner!r}; expected the object that describes the decoder layers")
    read = frozenset({HEAD_TYPE, LAYER_CONFIG, "architectures", _NOT_CAUSAL, *_COPIED})
    check_head(entries, Tables(read=read, fixed=_FIXED, neutral=_IGNORED | verifier_keys(entries)))
    flat = {**_DEFAULTS, **inner, "architectures": [architecture]}
    flat |= {name: entries[name] for name in _COPIED if entries.get(name) is not None}
    return flat | ({"is_causal": False} if values.flag(entries, _NOT_CAUSAL, False) else {})


def entries_for(config: DFlashConfig, dtype: str, verifier: Verifier) -> dict[str, Any]:
    """Returns the nested `config.json` of a head; `flattened` is the inverse.

    Raises:
        ValueError: the format cannot express the head.
    """
    layers = config.layers
    windows = tuple(i for i in range(layers.num_hidden_layers) if layers.window(i) is not None)
    problems = {
        "it has parts of a DSpark or DFlash 2 head": dflash_edges.entries_for(config)[0] != dflash_edges.DFLASH,
        "the layers have no norms of queries and keys, as Qwen3's": not layers.qk_norm,
        f"causal_layers={config.causal_layers}, and it says so of all layers with a window or of none": (
            config.causal_layers not in ((), windows)
        ),
        "it has embeddings of its own, and readers take the target's": (
            config.own_embedding or config.own_mask_embedding
        ),
        "it scales embeddings or logits, or caps these": (
            (config.input_embedding_scale, config.output_multiplier, config.final_logit_softcapping) != (1.0, 1.0, None)
        ),
    }
    for problem, is_present in problems.items():
        if is_present:
            raise ValueError(f"readers of the speculators format would run another head: {problem}; save it as dflash")
    differs = config.target_hidden_size != layers.hidden_size
    inner = {
        name: value for name, value in config_to_hf(layers).items() if name not in ("architectures", "torch_dtype")
    }
    return {
        **verifier.entries(METHOD, config.num_drafted),
        "architectures": [CLASSES[0]],
        LAYER_CONFIG: {"model_type": "qwen3", **inner},
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        ENTRY_LAYERS: list(config.taps),
        "draft_vocab_size": layers.vocab_size if config.draft_vocab_size is None else config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size if differs else None,
        "sample_from_anchor": config.sample_from_anchor,
        _NOT_CAUSAL: bool(windows) and not config.causal_layers,
        "torch_dtype": dtype,
    }
