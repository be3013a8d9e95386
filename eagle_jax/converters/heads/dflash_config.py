"""Parses a DFlash head's `config.json`; see `dflash` for the format.

Some configs state `block_size` within `dflash_config`, some the mask token and the layers outside it; both are read.
`target_layer_ids` name layers that the stream *leaves*, `aux_hidden_state_layer_ids` those that it *enters*, one more.
"""

from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters.families import lookup
from eagle_jax.converters.families.config import config_from_hf, config_to_hf
from eagle_jax.converters.heads import dflash_edges
from eagle_jax.converters.heads.eagle_formats import EMBEDDING, OUTPUT
from eagle_jax.converters.hf import rope
from eagle_jax.converters.hf import values as hf_values
from eagle_jax.converters.hf.keys import Tables, check_head
from eagle_jax.converters.tensor_file import TensorInfo

FAMILY, ARCHITECTURE = "qwen3", dflash_edges.DFLASH
NESTED, OUTPUT_TAPS, INPUT_TAPS = "dflash_config", "target_layer_ids", "aux_hidden_state_layer_ids"

# Factors and a cap of Gemma-like targets, whose absence means that there is none.
_NUMBERS = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")
_EITHER = frozenset({"block_size", "mask_token_id", OUTPUT_TAPS, "sample_from_anchor", *_NUMBERS})
_OUTER = _EITHER | {NESTED, INPUT_TAPS, "is_causal", "num_target_layers", "draft_vocab_size", "target_hidden_size"}
_INNER = _EITHER | {"causal", "causal_head"}
_INNER_FIXED: Mapping[str, tuple[Any, ...]] = {
    "use_swa": (False, None),
    "swa_window_size": (None,),
    "attention_sink_bias": (False, None),
}
_IGNORED = frozenset({"auto_map", "num_anchors", "loss_decay_gamma", "attention_backend"})


def read_config(info: Mapping[str, TensorInfo], entries: Mapping[str, Any]) -> DFlashConfig:
    """Reads a `config.json`, together with the sizes that only the tensors state. Every key is accounted for.

    Raises:
        ValueError: another method's config, keys that may change the head, or what has to be stated is not.
    """
    method = dflash_edges.method_of(entries.get("architectures") or [ARCHITECTURE])
    if entries.get("model_type", FAMILY) != FAMILY:
        raise ValueError(
            f"model_type {entries['model_type']!r} is not supported; expected {FAMILY!r}, whose layers it has"
        )
    inner = entries.get(NESTED) or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f"{NESTED} is {inner!r}; expected an object")
    _check_keys(entries, inner, method)
    layers = _layers(entries)
    fc = info["fc.weight"].shape if "fc.weight" in info else ()
    taps = _taps(entries, inner)
    if len(fc) != 2 or fc[1] % len(taps):
        raise ValueError(
            f"fc.weight has shape {list(fc)}; expected a multiple of {len(taps)} columns, one for each tap"
        )
    either = {name: _entry_in(entries, inner, name) for name in _EITHER | dflash_edges.KEYS[method]}
    for name in ("block_size", "mask_token_id"):
        if either[name] is None:
            raise ValueError(f"the config has no {name}; expected the one that the head was trained with")
    numbers: dict[str, Any] = {name: hf_values.number(either, name) for name in _NUMBERS if either[name] is not None}
    return DFlashConfig(
        layers=layers,
        taps=taps,
        target_hidden_size=_agreeing(entries, "target_hidden_size", fc[1] // len(taps)),
        block_size=hf_values.integer(either, "block_size"),
        mask_token_id=hf_values.integer(either, "mask_token_id"),
        causal_layers=_causal_layers(entries, inner, layers, () if method == "dspark" else None),
        sample_from_anchor=hf_values.flag(either, "sample_from_anchor", method == "dspark"),
        num_target_layers=hf_values.optional_integer(entries, "num_target_layers"),
        draft_vocab_size=_draft_vocab_size(info, entries, layers.vocab_size),
        own_embedding=EMBEDDING in info,
        **numbers,
        **dflash_edges.fields(method, either),
    )


def entries_for(config: DFlashConfig, dtype: str) -> dict[str, Any]:
    """Returns the `config.json` of a head; `read_config` reads it back.

    Raises:
        ValueError: the format has no words for it.
    """
    layers = config.layers
    if not layers.qk_norm:
        raise ValueError("the layers of a DFlash head on disk are Qwen3's; these have no norms of queries and keys")
    architecture, parts = dflash_edges.entries_for(config)
    inner: dict[str, Any] = {"mask_token_id": config.mask_token_id, OUTPUT_TAPS: [tap - 1 for tap in config.taps]}
    defaults = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": None}
    inner |= {name: getattr(config, name) for name in _NUMBERS if getattr(config, name) != defaults[name]}
    entries = config_to_hf(layers) | {"architectures": [architecture], "torch_dtype": dtype}
    if architecture == dflash_edges.SPECFORGE:
        inner["projector_type"] = "dspark"
    inner |= parts
    is_flat = architecture == dflash_edges.DEEPSPEC
    is_dspark = is_flat or architecture == dflash_edges.SPECFORGE
    entries |= {"block_size": config.block_size, **(inner if is_flat else {NESTED: inner})}
    inner = entries if is_flat else inner
    everywhere = tuple(range(layers.num_hidden_layers))
    if config.causal_layers in ((), everywhere):
        entries["is_causal"] = bool(config.causal_layers)
        inner |= {"causal_head": True} if config.causal_layers and not is_flat else {}
    elif is_dspark or config.causal_layers != tuple(i for i in everywhere if layers.window(i) is not None):
        choices = "of all layers or of none" if is_dspark else "of all layers, of none, or of those with a window"
        raise ValueError(f"causal_layers={config.causal_layers}: a config of {architecture} says so {choices}")
    if config.num_target_layers is not None:
        entries["num_target_layers"] = config.num_target_layers
    if config.sample_from_anchor and architecture in (ARCHITECTURE, dflash_edges.DFLASH2):
        entries["sample_from_anchor"] = True
    if is_flat:
        entries["num_anchors"] = dflash_edges.ANCHORS
    if config.target_hidden_size != layers.hidden_size:
        entries["target_hidden_size"] = config.target_hidden_size
    if config.draft_vocab_size is not None:
        entries["draft_vocab_size"] = config.draft_vocab_size
    return entries


def _check_keys(entries: Mapping[str, Any], inner: Mapping[str, Any], method: str) -> None:
    """Raises ValueError with all unsupported keys of both objects."""
    tables, refusals = lookup.tables_of(FAMILY), hf_values.Refusals()
    parts, ignored = dflash_edges.KEYS[method], _IGNORED | dflash_edges.IGNORED[method]
    fixed = {key: values for key, values in tables.fixed.items() if key not in _OUTER}
    outer = Tables(read=tables.read | _OUTER | parts, fixed=fixed, neutral=lookup.IGNORED | ignored)
    refusals.of(check_head, {**entries, **rope.unread_settings(entries)}, outer)
    fixed = {**_INNER_FIXED, "projector_type": (method, None)}
    refusals.of(check_head, inner, Tables(read=_INNER | parts, fixed=fixed, neutral=ignored))
    refusals.check()


def _layers(entries: Mapping[str, Any]) -> LlamaConfig:
    """Returns the decoder layers: the entries that a Qwen3 has, read as a Qwen3's."""
    rotary = [entries, *(entries.get(key) for key in ("rope_parameters", "rope_scaling"))]
    if not any(isinstance(part, Mapping) and part.get("rope_theta") is not None for part in rotary):
        raise ValueError("the config has no rope_theta, here or in rope_parameters; expected the one of the training")
    read = lookup.tables_of(FAMILY).read
    layer_entries = {name: value for name, value in entries.items() if name in read}
    layer_entries |= {"architectures": [lookup.FAMILIES[FAMILY].architecture], "tie_word_embeddings": False}
    return config_from_hf({"model_type": FAMILY, **layer_entries})


def _taps(entries: Mapping[str, Any], inner: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the layers whose input is tapped."""
    output_taps, input_taps = _entry_in(entries, inner, OUTPUT_TAPS), entries.get(INPUT_TAPS)
    for name, ids, minimum in ((OUTPUT_TAPS, output_taps, -1), (INPUT_TAPS, input_taps, 0)):
        is_valid = isinstance(ids, list) and ids and all(type(layer) is int and layer >= minimum for layer in ids)
        if ids is not None and (not is_valid or len(set(ids)) < len(ids)):
            raise ValueError(f"{name} is {ids!r}; expected layer numbers, each once")
    taps = input_taps if output_taps is None else [layer + 1 for layer in output_taps]
    if taps is None:
        raise ValueError(
            f"the config has no {OUTPUT_TAPS}; expected the target layers that the head was trained on; there is "
            "no default, since the tensors do not determine them"
        )
    if input_taps is not None and taps != input_taps:
        raise ValueError(
            f"{OUTPUT_TAPS} is {output_taps}, layers whose outputs are tapped, and {INPUT_TAPS} is {input_taps}, "
            "layers whose inputs are tapped; expected each of the latter to be one more; remove the wrong list"
        )
    return tuple(taps)


def _causal_layers(
    entries: Mapping[str, Any], inner: Mapping[str, Any], layers: LlamaConfig, default: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Returns the layers whose attention is causal within the block.

    Where the config does not say all or none, these are `default`, or with None those with a window.
    """
    everywhere = range(layers.num_hidden_layers)
    for of, name in ((entries, "is_causal"), (inner, "causal"), (inner, "causal_head")):
        if of.get(name) is not None:
            return tuple(everywhere) if hf_values.flag(of, name, False) else ()
    return tuple(i for i in everywhere if layers.window(i) is not None) if default is None else default


def _entry_in(entries: Mapping[str, Any], inner: Mapping[str, Any], name: str) -> Any:
    """Returns an entry of either object, or None. Raises ValueError if both have it with different values."""
    present = [of[name] for of in (inner, entries) if of.get(name) is not None]
    if len(present) == 2 and present[0] != present[1]:
        raise ValueError(f"{name} is {present[0]!r} in {NESTED} and {present[1]!r} outside it; expected them to agree")
    return present[0] if present else None


def _agreeing(entries: Mapping[str, Any], name: str, size: int) -> int:
    """Returns the size that the tensors show. Raises ValueError if the config states another."""
    if hf_values.integer(entries, name, size) != size:
        raise ValueError(f"{name}={entries[name]} in the config, and the tensors make {size}; expected them to agree")
    return size


def _draft_vocab_size(info: Mapping[str, TensorInfo], entries: Mapping[str, Any], vocab_size: int) -> int | None:
    """Returns the rows of the head's own output matrix; None if it uses the target's, which makes all tokens."""
    rows = info[OUTPUT].shape[0] if OUTPUT in info and info[OUTPUT].shape else None
    if rows is None and entries.get("draft_vocab_size") not in (None, vocab_size):
        raise ValueError(f"draft_vocab_size={entries['draft_vocab_size']}, and there is no {OUTPUT}; expected one")
    _agreeing(entries, "draft_vocab_size", vocab_size if rows is None else rows)
    return rows
