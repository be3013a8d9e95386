"""What a draft head's `config.json` says that no tensor shows, in each of the formats.

    flat     SafeAILab, SpecForge, SGLang   one object, with a Llama's keys and a few of EAGLE's among them
    nested   vLLM speculators               the layers' keys in `transformer_layer_config`, EAGLE's around it

The formats count tapped layers differently. Ours is the layer whose *entering* residual stream is read, as HuggingFace
counts `output_hidden_states`; so does the nested format, while `eagle_config` of the flat one names the layer that the
stream *leaves*, one less.
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

KIND, LAYER = "speculators_model_type", "transformer_layer_config"
PEAGLE = "peagle"
TAPS, NUM_TAPS = "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states"
LEFT = "target_layer_ids"  # DeepSpec's: layers that the streams leave

# Keys about the decoder layers; those of experts are the target's, and a head has none.
_LAYER_READ = frozenset(
    """
    hidden_size intermediate_size num_attention_heads num_key_value_heads num_hidden_layers vocab_size head_dim
    rms_norm_eps max_position_embeddings bias qkv_bias attention_bias mlp_bias tie_word_embeddings model_type
    architectures sliding_window use_sliding_window max_window_layers layer_types
    num_experts num_local_experts num_experts_per_tok moe_intermediate_size decoder_sparse_step mlp_only_layers
    norm_topk_prob router_aux_loss_coef output_router_logits router_jitter_noise shared_expert_intermediate_size
    """.split()
).union(rope.KEYS)
_FIXED: Mapping[str, tuple[Any, ...]] = {**lookup.FIXED, **lookup.SILU, "logit_scale": (None, 1.0)}
_LAYER_FIXED = {name: value for name, value in _FIXED.items() if name not in _LAYER_READ}

# vLLM and SGLang read these settings of YaRN; transformers does not.
_ROPE_FIXED = {f"rope_scaling.{name}": (1.0, None) for name in ("attn_factor", "extrapolation_factor")}

_OLD_FC_NORM = "use_aux_norm"  # what SGLang called `fc_norm` at first
_EAGLE3_READ = frozenset(
    {*FLAGS, _OLD_FC_NORM, "draft_vocab_size", "target_hidden_size", "eagle_config", TAPS, NUM_TAPS, LEFT}
)
# DeepSpec's note how a head was trained and for what target.
_EAGLE3_IGNORED = mask_entries.IGNORED | frozenset(
    """
    target_model_type ttt_length step_loss_decay draft_num_hidden_layers num_target_layers target_model_name_or_path
    _torchspec_version
    """.split()
)

# Beside a latent attention's: keys of experts, which are the target's.
_LATENT_IGNORED = frozenset(
    """
    n_routed_experts n_shared_experts first_k_dense_replace moe_layer_freq n_group topk_group topk_method scoring_func
    routed_scaling_factor qk_head_dim num_nextn_predict_layers seq_aux aux_loss_alpha ep_size
    """.split()
)
ENTERED = "kimi_k2"  # numbered heads of this type have in `eagle_config` layers that streams enter (TorchSpec for vLLM)

# `eagle_config`, as NVIDIA's and SpecForge's heads have it.
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

# Around `transformer_layer_config`.
_OUTER_READ = mask_entries.READ.union(
    {KIND, LAYER, "architectures", *FLAGS, "draft_vocab_size", "target_hidden_size", TAPS}
)
_OUTER_FIXED = _LAYER_FIXED | {"layernorms": (False,)}
OUTER_IGNORED = lookup.IGNORED.union(
    mask_entries.IGNORED,
    """
    speculators_config speculators_version embed_requires_grad has_no_defaults_at_init base_model_ep_plan auto_map
    model_type tie_word_embeddings fusion_bias transformer_layer_architecture
    """.split(),
)

# Other methods' heads, of which some have tensors like EAGLE's, by a part of the name of their class.
_OTHER_METHODS: Mapping[str, str] = {
    "dflash": "DFlash",
    "dflare": "DFlare",
    "dspark": "DSpark",
    "domino": "Domino",
    "medusa": "Medusa",
    "hydra": "Hydra",
}

# What the classes of EAGLE heads are called: their own names, or those of a target or of one of its layers.
_EAGLE_CLASS = re.compile(r"(?i:eagle)|ForCausalLM|DecoderLayer$")

# transformers leaves out of `transformer_layer_config` what is its class's default.
_NESTED_ABSENT: Mapping[str, Mapping[str, Any]] = {
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
class Stated:
    """What a `config.json` of any format says.

    Attributes:
        layer: HuggingFace's keys of the decoder layers.
        taps: target layers whose entering residual stream is read; None leaves it to the target.
        draft_vocab_size, target_hidden_size: as stated, or None.
        flags: EAGLE-3 flags that are stated.
        num_taps: how many layers are read, or None.
        mask: P-EAGLE's mask rows.
    """

    layer: Mapping[str, Any]
    taps: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    flags: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    num_taps: int | None = None
    mask: mask_entries.StatedMask = mask_entries.StatedMask()


def read_entries(entries: Mapping[str, Any], *, eagle3: bool, numbered: bool = False) -> Stated:
    """Reads a head's `config.json` in either form. Every key is accounted for.

    Unknown keys that are false, null or empty are ignored, with a line in the log.

    Args:
        numbered: the tensors of an EAGLE-3 head's layers have numbers in their names.

    Raises:
        ValueError: keys that may change the head, all at once, a value that cannot be, or another method's config.
    """
    check_method(entries)
    return _nested(entries, eagle3) if KIND in entries else _flat(entries, eagle3, numbered)


def check_method(entries: Mapping[str, Any]) -> None:
    """Raises ValueError that names the method of a head whose config is not an EAGLE head's."""
    stated = entries.get("architectures") or []
    classes = [str(name) for name in (stated if isinstance(stated, list) else [stated])]
    for name in (*classes, str(entries.get(KIND))):
        for part, method in _OTHER_METHODS.items():
            if part in name.lower().replace("-", ""):
                raise ValueError(f"{name!r} is a {method} head; expected an EAGLE-1, 2 or 3 or a P-EAGLE head")
    odd = next((name for name in classes if not _EAGLE_CLASS.search(name)), None)
    if odd is not None:
        raise ValueError(f"architectures names {odd!r}, which is not known; expected a class of EAGLE heads")


def _read(entries: Mapping[str, Any], tables: Tables, where: str = "") -> None:
    """Accounts for every key of one object of a head's config; `where` says which object it is."""
    settings = rope.unread_settings(entries)
    tables = dataclasses.replace(tables, fixed={**tables.fixed, **_ROPE_FIXED})
    try:
        check_head({**entries, **settings}, tables)
    except ValueError as error:
        raise ValueError(f"in {where}: {error}" if where else str(error)) from error


def _flat(entries: Mapping[str, Any], eagle3: bool, numbered: bool) -> Stated:
    trimmed = {"draft_vocab_size"}
    read = _LAYER_READ | (_EAGLE3_READ | mask_entries.READ if eagle3 else trimmed)
    neutral = lookup.IGNORED | (_EAGLE3_IGNORED if eagle3 else frozenset())
    if eagle3 and has_latent(entries):
        read, neutral = read | latent_attention.KEYS, neutral | _LATENT_IGNORED
    refusals = values.Refusals()
    refusals.of(_read, entries, Tables(read=read, fixed=_LAYER_FIXED, neutral=neutral))
    if not eagle3:
        refusals.check()
    # NeMo writes the target's number of layers; the tensors show the head's.
    entries = {name: value for name, value in entries.items() if name != "num_hidden_layers"}
    if not eagle3:
        return Stated(layer=entries, draft_vocab_size=values.optional_integer(entries, "draft_vocab_size"))
    if entries.get(_OLD_FC_NORM) is not None:
        entries = {"fc_norm": entries[_OLD_FC_NORM], **entries}
    inner = entries.get("eagle_config") or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f"eagle_config is {inner!r}; expected an object")
    inner_tables = Tables(read=frozenset({TAPS}), fixed=_INNER_FIXED, neutral=frozenset())
    refusals.of(_read, inner, inner_tables, "eagle_config")
    refusals.check()
    entering = numbered and entries.get("model_type") == ENTERED and has_latent(entries)
    return _eagle3(entries, entries, _layers(inner, TAPS, least=0) if entering else _taps(inner, entries))


def has_latent(entries: Mapping[str, Any]) -> bool:
    """Returns whether a config states latent attention."""
    return entries.get("kv_lora_rank") is not None


def _taps(inner: Mapping[str, Any], entries: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Layers whose entering residual stream is read, of a flat config and its `eagle_config`."""
    entered = _layers(entries, TAPS, least=0)
    nested_left, flat_left = _layers(inner, TAPS, least=-1), _layers(entries, LEFT, least=-1)
    if nested_left and flat_left and nested_left != flat_left:
        raise ValueError(
            f"{list(nested_left)} in eagle_config and {list(flat_left)} in {LEFT}, both layers that the streams leave; "
            "expected the same in both, or one of the two alone"
        )
    left, where = (nested_left, "eagle_config") if nested_left else (flat_left, LEFT)
    if left is None:
        return entered
    taps = tuple(layer + 1 for layer in left)
    if entered is not None and taps != entered:
        raise ValueError(
            f"{TAPS} is {list(entered)}, layers that the streams enter, and {list(left)} in {where}, layers that they "
            "leave; expected the latter to be one less, or one of the two alone"
        )
    return taps


def _nested(entries: Mapping[str, Any], eagle3: bool) -> Stated:
    expected = ("eagle3", PEAGLE) if eagle3 else ("eagle",)
    if entries[KIND] not in expected:
        raise ValueError(
            f"{KIND}={entries[KIND]!r}, and the tensors are those of {expected[0]!r}; expected them to agree"
        )
    refusals = values.Refusals()
    outer = Tables(read=_OUTER_READ, fixed=_OUTER_FIXED, neutral=OUTER_IGNORED | verifier_keys(entries))
    refusals.of(_read, entries, outer)
    inner = entries.get(LAYER)
    if not isinstance(inner, Mapping):
        raise ValueError(f"{LAYER} is {inner!r}; expected the object that describes the decoder layer")
    family = inner.get("model_type")
    if not isinstance(family, str) or family not in _NESTED_ABSENT:
        raise ValueError(
            f"model_type {family!r} in {LAYER} is not supported; expected one of {', '.join(_NESTED_ABSENT)}"
        )
    refusals.of(_read, inner, Tables(read=_LAYER_READ, fixed=_LAYER_FIXED, neutral=lookup.IGNORED), LAYER)
    refusals.check()
    layer = {**_NESTED_ABSENT[family], **inner}
    if not eagle3:
        return Stated(layer=layer)
    if "norm_before_residual" not in entries:
        raise ValueError(
            "the config has no norm_before_residual, which speculators takes for false and vLLM for true; state it"
        )
    return _eagle3(entries, layer, _layers(entries, TAPS, least=0))


def _eagle3(entries: Mapping[str, Any], layer: Mapping[str, Any], taps: tuple[int, ...] | None) -> Stated:
    stated = [*(entries.get("architectures") or []), entries.get(KIND)]
    return Stated(
        layer=layer,
        taps=taps,
        draft_vocab_size=values.optional_integer(entries, "draft_vocab_size"),
        target_hidden_size=values.optional_integer(entries, "target_hidden_size"),
        flags={name: values.flag(entries, name, False) for name in FLAGS if entries.get(name) is not None},
        num_taps=values.optional_integer(entries, NUM_TAPS),
        mask=mask_entries.read(entries, any(PEAGLE in str(name).lower().replace("-", "") for name in stated)),
    )


def verifier_keys(entries: Mapping[str, Any]) -> frozenset[str]:
    """Returns the keys in which speculators describes the target."""
    return frozenset(name for name in entries if name.startswith("verifier_"))


def _layers(entries: Mapping[str, Any], name: str, least: int) -> tuple[int, ...] | None:
    layers = entries.get(name)
    if layers is None:
        return None
    is_valid = isinstance(layers, list) and layers and all(type(layer) is int and layer >= least for layer in layers)
    if not is_valid or sorted(set(layers)) != layers:
        raise ValueError(f"{name} is {layers!r}; expected layer numbers in ascending order")
    return tuple(layers)
