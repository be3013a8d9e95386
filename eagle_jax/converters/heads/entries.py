"""Parses a draft head's `config.json`, for the facts that its tensors do not show.

    flat     SafeAILab, SpecForge, SGLang   one object that holds a Llama's keys and EAGLE's
    nested   vLLM speculators               the layers' keys in `transformer_layer_config`, EAGLE's around it

The formats number tapped layers differently. This package and the nested format give the layer whose *input* is
tapped, as HuggingFace indexes `output_hidden_states`. `eagle_config` in the flat format gives the layer whose *output*
is tapped, which is one less.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from eagle_jax.converters.families import latent_attention, lookup
from eagle_jax.converters.heads import mask_entries
from eagle_jax.converters.heads.eagle_formats import FLAGS
from eagle_jax.converters.hf import rope, values
from eagle_jax.converters.hf.keys import Tables, check_head

HEAD_TYPE, LAYER_CONFIG = "speculators_model_type", "transformer_layer_config"
PEAGLE = "peagle"
TAPS, NUM_TAPS = "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states"
OUTPUT_TAPS = "target_layer_ids"  # DeepSpec's key for the layers whose outputs are tapped

_LAYER_READ = frozenset(
    """
    hidden_size intermediate_size num_attention_heads num_key_value_heads num_hidden_layers vocab_size head_dim
    rms_norm_eps max_position_embeddings bias qkv_bias attention_bias mlp_bias tie_word_embeddings model_type
    architectures sliding_window use_sliding_window max_window_layers layer_types
    """.split()
).union(rope.KEYS)
# Expert settings, copied from the config of the target: heads have no experts.
_LAYER_IGNORED = lookup.IGNORED.union(
    """
    num_experts num_local_experts num_experts_per_tok moe_intermediate_size decoder_sparse_step mlp_only_layers
    norm_topk_prob shared_expert_intermediate_size
    """.split()
)
_FIXED: Mapping[str, tuple[Any, ...]] = {**lookup.FIXED, **lookup.SILU, "logit_scale": (None, 1.0)}
_LAYER_FIXED = {name: value for name, value in _FIXED.items() if name not in _LAYER_READ}

# YaRN settings that vLLM and SGLang read, and transformers does not.
_ROPE_FIXED = {f"rope_scaling.{name}": (1.0, None) for name in ("attn_factor", "extrapolation_factor")}

_OLD_FC_NORM = "use_aux_norm"  # SGLang's first name for `fc_norm`
_EAGLE3_READ = frozenset(FLAGS) | {_OLD_FC_NORM, "draft_vocab_size", "target_hidden_size", "eagle_config"}
_EAGLE3_READ |= {TAPS, NUM_TAPS, OUTPUT_TAPS}
# DeepSpec and TorchSpec record here how a head was trained, and for which target.
_EAGLE3_IGNORED = mask_entries.IGNORED | frozenset(
    """
    target_model_type ttt_length step_loss_decay draft_num_hidden_layers num_target_layers target_model_name_or_path
    _torchspec_version
    """.split()
)

# Expert settings in configs with latent attention, copied from the config of the target.
_LATENT_IGNORED = frozenset(
    """
    n_routed_experts n_shared_experts first_k_dense_replace moe_layer_freq n_group topk_group topk_method scoring_func
    routed_scaling_factor qk_head_dim num_nextn_predict_layers seq_aux aux_loss_alpha ep_size
    """.split()
)
# In numbered heads of this type, TorchSpec writes layers whose *inputs* are tapped to `eagle_config`, for vLLM.
_INPUT_TAPS_TYPE = "kimi_k2"

# Keys in `eagle_config`, in heads by NVIDIA and SpecForge.
_INNER_FIXED: Mapping[str, tuple[Any, ...]] = {
    "use_aux_hidden_state": (True, None),
    "use_input_layernorm_in_first_layer": (True, None),
    "use_last_layernorm": (True, None),
    "use_mtp_layernorm": (False, None),
    "next_layer_regular": (True, None),
    "parallel_draft_step": (1, None),
    "parallel_draft_heads_num_layers": (None, 0, 1),
    "has_lm_head": (True, False, None),
}

# Keys outside `transformer_layer_config`.
_OUTER_READ = mask_entries.READ.union(
    {HEAD_TYPE, LAYER_CONFIG, "architectures", *FLAGS, "draft_vocab_size", "target_hidden_size", TAPS}
)
_OUTER_FIXED = _LAYER_FIXED | {"layernorms": (False,)}
OUTER_IGNORED = lookup.IGNORED.union(
    mask_entries.IGNORED,
    """
    speculators_config speculators_version embed_requires_grad has_no_defaults_at_init base_model_ep_plan auto_map
    model_type tie_word_embeddings fusion_bias transformer_layer_architecture
    """.split(),
)

# Heads of other methods, some with the same tensor names as EAGLE's: a part of the class name, and the method.
_OTHER_METHODS: Mapping[str, str] = {
    "dflash": "DFlash",
    "dflare": "DFlare",
    "dspark": "DSpark",
    "domino": "Domino",
    "medusa": "Medusa",
    "hydra": "Hydra",
}

# Class names in configs of EAGLE heads: an EAGLE class, a target's class, or a decoder layer's.
_EAGLE_CLASS = re.compile(r"(?i:eagle)|ForCausalLM|DecoderLayer$")

# transformers omits values equal to the defaults of the config class from `transformer_layer_config`.
_NESTED_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "vocab_size": 32000,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
    },
    "qwen3": {
        "vocab_size": 151936,
        "num_attention_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
    },
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadEntries:
    """The parsed `config.json` of a head; None stands for keys that the config lacks.

    Attributes:
        layer: HuggingFace's keys for the decoder layers.
        taps: target layers whose input is tapped; None for the default taps of the target.
        draft_vocab_size: number of tokens that the head can draft.
        target_hidden_size: width of a tapped layer.
        flags: the EAGLE-3 flags in the config.
        num_taps: number of tapped layers.
        mask: settings of P-EAGLE's mask rows.
    """

    layer: Mapping[str, Any]
    taps: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    flags: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    num_taps: int | None = None
    mask: mask_entries.MaskEntries = mask_entries.MaskEntries()


def read_entries(entries: Mapping[str, Any], *, eagle3: bool, numbered: bool = False) -> HeadEntries:
    """Parses a head's `config.json` in either format.

    Unknown keys that are false, null or empty are ignored and logged.

    Args:
        entries: the contents of `config.json`.
        eagle3: whether the head is an EAGLE-3 or P-EAGLE head.
        numbered: whether an EAGLE-3 head's tensor names contain layer numbers.

    Raises:
        ValueError: unsupported keys (all are listed), an invalid value, or the config of another method.
    """
    check_method(entries)
    return _nested(entries, eagle3) if HEAD_TYPE in entries else _flat(entries, eagle3, numbered)


def check_method(entries: Mapping[str, Any]) -> None:
    """Raises ValueError with the name of the method if the config belongs to a head of another method than EAGLE."""
    architectures = entries.get("architectures") or []
    classes = [str(name) for name in (architectures if isinstance(architectures, list) else [architectures])]
    for name in (*classes, str(entries.get(HEAD_TYPE))):
        for part, method in _OTHER_METHODS.items():
            if part in name.lower().replace("-", ""):
                raise ValueError(f"{name!r} is a {method} head; expected an EAGLE-1, EAGLE-2, EAGLE-3 or P-EAGLE head")
    unknown = next((name for name in classes if not _EAGLE_CLASS.search(name)), None)
    if unknown is not None:
        raise ValueError(f"architectures contains the unknown class {unknown!r}; expected the class of an EAGLE head")


def _check_keys(entries: Mapping[str, Any], tables: Tables, path: str = "") -> None:
    """Raises ValueError with all unsupported keys of the object at `path` in a head's config."""
    settings = rope.unread_settings(entries)
    tables = dataclasses.replace(tables, fixed={**tables.fixed, **_ROPE_FIXED})
    try:
        check_head({**entries, **settings}, tables)
    except ValueError as error:
        raise ValueError(f"in {path}: {error}" if path else str(error)) from error


def _flat(entries: Mapping[str, Any], eagle3: bool, numbered: bool) -> HeadEntries:
    read = _LAYER_READ | (_EAGLE3_READ | mask_entries.READ if eagle3 else {"draft_vocab_size"})
    neutral = _LAYER_IGNORED | (_EAGLE3_IGNORED if eagle3 else frozenset())
    if eagle3 and has_latent_attention(entries):
        read, neutral = read | latent_attention.KEYS, neutral | _LATENT_IGNORED
    refusals = values.Refusals()
    refusals.of(_check_keys, entries, Tables(read=read, fixed=_LAYER_FIXED, neutral=neutral))
    if not eagle3:
        refusals.check()
    # NeMo writes the number of layers of the target; the tensors show the number of layers of the head.
    entries = {name: value for name, value in entries.items() if name != "num_hidden_layers"}
    if not eagle3:
        return HeadEntries(layer=entries, draft_vocab_size=values.optional_integer(entries, "draft_vocab_size"))
    if entries.get(_OLD_FC_NORM) is not None:
        entries = {"fc_norm": entries[_OLD_FC_NORM], **entries}
    inner = entries.get("eagle_config") or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f"eagle_config is {inner!r}; expected an object")
    inner_tables = Tables(read=frozenset({TAPS}), fixed=_INNER_FIXED, neutral=frozenset())
    refusals.of(_check_keys, inner, inner_tables, "eagle_config")
    refusals.check()
    has_input_taps = numbered and entries.get("model_type") == _INPUT_TAPS_TYPE and has_latent_attention(entries)
    return _eagle3(entries, entries, _layers(inner, TAPS, minimum=0) if has_input_taps else _taps(inner, entries))


def has_latent_attention(entries: Mapping[str, Any]) -> bool:
    """Returns whether the head's decoder layers have latent attention."""
    return entries.get("kv_lora_rank") is not None


def _taps(inner: Mapping[str, Any], entries: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Returns the layers whose input is tapped, from a flat config and the `eagle_config` in it."""
    input_taps = _layers(entries, TAPS, minimum=0)
    inner_output_taps, flat_output_taps = (
        _layers(inner, TAPS, minimum=-1),
        _layers(entries, OUTPUT_TAPS, minimum=-1),
    )
    if inner_output_taps and flat_output_taps and inner_output_taps != flat_output_taps:
        raise ValueError(
            f"eagle_config lists {list(inner_output_taps)} and {OUTPUT_TAPS} lists {list(flat_output_taps)}, both as "
            "layers whose outputs are tapped; expected equal lists; remove the wrong one"
        )
    output_taps, key = (inner_output_taps, "eagle_config") if inner_output_taps else (flat_output_taps, OUTPUT_TAPS)
    if output_taps is None:
        return input_taps
    taps = tuple(layer + 1 for layer in output_taps)
    if input_taps is not None and taps != input_taps:
        raise ValueError(
            f"{TAPS} lists {list(input_taps)}, layers whose inputs are tapped, and {key} lists {list(output_taps)}, "
            "layers whose outputs are tapped; expected each of the latter to be one less; remove the wrong list"
        )
    return taps


def _nested(entries: Mapping[str, Any], eagle3: bool) -> HeadEntries:
    expected = ("eagle3", PEAGLE) if eagle3 else ("eagle",)
    if entries[HEAD_TYPE] not in expected:
        raise ValueError(
            f"{HEAD_TYPE}={entries[HEAD_TYPE]!r}, but the tensors belong to {expected[0]!r}; expected them to agree"
        )
    refusals = values.Refusals()
    outer = Tables(read=_OUTER_READ, fixed=_OUTER_FIXED, neutral=OUTER_IGNORED | verifier_keys(entries))
    refusals.of(_check_keys, entries, outer)
    inner = entries.get(LAYER_CONFIG)
    if not isinstance(inner, Mapping):
        raise ValueError(f"{LAYER_CONFIG} is {inner!r}; expected the object that describes the decoder layer")
    family = inner.get("model_type")
    if not isinstance(family, str) or family not in _NESTED_DEFAULTS:
        raise ValueError(
            f"model_type {family!r} in {LAYER_CONFIG} is not supported; expected one of {', '.join(_NESTED_DEFAULTS)}"
        )
    refusals.of(_check_keys, inner, Tables(read=_LAYER_READ, fixed=_LAYER_FIXED, neutral=_LAYER_IGNORED), LAYER_CONFIG)
    refusals.check()
    layer = {**_NESTED_DEFAULTS[family], **inner}
    if not eagle3:
        return HeadEntries(layer=layer)
    if "norm_before_residual" not in entries:
        raise ValueError(
            "the config lacks norm_before_residual, which defaults to false in speculators and to true in vLLM; add it"
        )
    return _eagle3(entries, layer, _layers(entries, TAPS, minimum=0))


def _eagle3(entries: Mapping[str, Any], layer: Mapping[str, Any], taps: tuple[int, ...] | None) -> HeadEntries:
    types = [*(entries.get("architectures") or []), entries.get(HEAD_TYPE)]
    return HeadEntries(
        layer=layer,
        taps=taps,
        draft_vocab_size=values.optional_integer(entries, "draft_vocab_size"),
        target_hidden_size=values.optional_integer(entries, "target_hidden_size"),
        flags={name: values.flag(entries, name, False) for name in FLAGS if entries.get(name) is not None},
        num_taps=values.optional_integer(entries, NUM_TAPS),
        mask=mask_entries.read(entries, any(PEAGLE in str(name).lower().replace("-", "") for name in types)),
    )


def verifier_keys(entries: Mapping[str, Any]) -> frozenset[str]:
    """Returns the keys with which speculators describes the target."""
    return frozenset(name for name in entries if name.startswith("verifier_"))


def _layers(entries: Mapping[str, Any], key: str, minimum: int) -> tuple[int, ...] | None:
    layers = entries.get(key)
    if layers is None:
        return None
    is_valid = isinstance(layers, list) and layers and all(type(layer) is int and layer >= minimum for layer in layers)
    if not is_valid or sorted(set(layers)) != layers:
        raise ValueError(f"{key} is {layers!r}; expected ascending layer numbers, none below {minimum}")
    return tuple(layers)
