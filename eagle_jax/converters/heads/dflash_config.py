"""Reads and writes a DFlash head's `config.json`; see `dflash` for the format.

`block_size`, the mask token and the layers may be stated inside or outside `dflash_config`. `target_layer_ids` names
layers that the residual stream *leaves*, `aux_hidden_state_layer_ids` the layers that it *enters*, one more.
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
NESTED, EXIT_LAYERS, ENTRY_LAYERS = "dflash_config", "target_layer_ids", "aux_hidden_state_layer_ids"

# Two factors and a cap for Gemma-like targets; optional.
_SCALES = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")
_SHARED = frozenset({"block_size", "mask_token_id", EXIT_LAYERS, "sample_from_anchor", *_SCALES})  # at either level
_OUTER = _SHARED | {NESTED, ENTRY_LAYERS, "is_causal", "num_target_layers", "draft_vocab_size", "target_hidden_size"}
_INNER = _SHARED | {"causal", "causal_head"}
_INNER_FIXED: Mapping[str, tuple[Any, ...]] = {
    "use_swa": (False, None),
    "swa_window_size": (None,),
    "attention_sink_bias": (False, None),
}
_IGNORED = frozenset({"auto_map", "num_anchors", "loss_decay_gamma", "attention_backend"})


def read_config(info: Mapping[str, TensorInfo], entries: Mapping[str, Any]) -> DFlashConfig:
    """Reads a `config.json`, with the sizes that only the tensors show. Unknown keys are refused.

    Raises:
        ValueError: another method's config, an unknown key, or a required entry is missing.
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
    merged = {name: _agreed_value(entries, inner, name) for name in _SHARED | dflash_edges.KEYS[method]}
    for name in ("block_size", "mask_token_id"):
        if merged[name] is None:
            raise ValueError(f"the config has no {name}; expected the one that the head was trained with")
    scales: dict[str, Any] = {name: hf_values.number(merged, name) for name in _SCALES if merged[name] is not None}
    return DFlashConfig(
        layers=layers,
        taps=taps,
        target_hidden_size=_checked_size(entries, "target_hidden_size", fc[1] // len(taps)),
        block_size=hf_values.integer(merged, "block_size"),
        mask_token_id=hf_values.integer(merged, "mask_token_id"),
        causal_layers=_causal_layers(entries, inner, layers, () if method == "dspark" else None),
        sample_from_anchor=hf_values.flag(merged, "sample_from_anchor", method == "dspark"),
        num_target_layers=hf_values.optional_integer(entries, "num_target_layers"),
        draft_vocab_size=_draft_vocab_size(info, entries, layers.vocab_size),
        own_embedding=EMBEDDING in info,
        **scales,
        **dflash_edges.fields(method, merged),
    )


def entries_for(config: DFlashConfig, dtype: str) -> dict[str, Any]:
    """Returns the `config.json` of a head; `read_config` reads it back.

    Raises:
        ValueError: the format cannot express the head.
    """
    layers = config.layers
    if not layers.qk_norm:
        raise ValueError("the layers of a DFlash head on disk are Qwen3's; these have no norms of queries and keys")
    architecture, parts = dflash_edges.entries_for(config)
    inner: dict[str, Any] = {"mask_token_id": config.mask_token_id, EXIT_LAYERS: [tap - 1 for tap in config.taps]}
    defaults = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": None}
    inner |= {name: getattr(config, name) for name in _SCALES if getattr(config, name) != defaults[name]}
    entries = config_to_hf(layers) | {"architectures": [architecture], "torch_dtype": dtype}
    if architecture == dflash_edges.SPECFORGE:
        inner["projector_type"] = "dspark"
    inner |= parts
    is_flat = architecture == dflash_edges.DEEPSPEC
    is_dspark = is_flat or architecture == dflash_edges.SPECFORGE
    entries |= {"block_size": config.block_size, **(inner if is_flat else {NESTED: inner})}
    inner = entries if is_flat else inner
    all_layers = tuple(range(layers.num_hidden_layers))
    if config.causal_layers in ((), all_layers):
        entries["is_causal"] = bool(config.causal_layers)
        inner |= {"causal_head": True} if config.causal_layers and not is_flat else {}
    elif is_dspark or config.causal_layers != tuple(i for i in all_layers if layers.window(i) is not None):
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
    """Refuses unknown keys, of both objects in one message."""
    tables, refusals = lookup.tables_of(FAMILY), hf_values.Refusals()
    parts, ignored = dflash_edges.KEYS[method], _IGNORED | dflash_edges.IGNORED[method]
    fixed = {key: values for key, values in tables.fixed.items() if key not in _OUTER}
    outer = Tables(read=tables.read | _OUTER | parts, fixed=fixed, neutral=lookup.IGNORED | ignored)
    refusals.of(check_head, {**entries, **rope.unread_settings(entries)}, outer)
    fixed = {**_INNER_FIXED, "projector_type": (method, None)}
    refusals.of(check_head, inner, Tables(read=_INNER | parts, fixed=fixed, neutral=ignored))
    refusals.check()


def _layers(entries: Mapping[str, Any]) -> LlamaConfig:
    """Returns the config of the decoder layers, from the entries that Qwen3 has."""
    rotary = [entries, *(entries.get(key) for key in ("rope_parameters", "rope_scaling"))]
    if not any(isinstance(part, Mapping) and part.get("rope_theta") is not None for part in rotary):
        raise ValueError("the config has no rope_theta, here or in rope_parameters; expected the one of the training")
    read = lookup.tables_of(FAMILY).read
    layer_entries = {name: value for name, value in entries.items() if name in read}
    layer_entries |= {"architectures": [lookup.FAMILIES[FAMILY].architecture], "tie_word_embeddings": False}
    return config_from_hf({"model_type": FAMILY, **layer_entries})


def _taps(entries: Mapping[str, Any], inner: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the tapped layers, which the residual stream enters."""
    exits, entry_ids = _agreed_value(entries, inner, EXIT_LAYERS), entries.get(ENTRY_LAYERS)
    for name, ids, min_id in ((EXIT_LAYERS, exits, -1), (ENTRY_LAYERS, entry_ids, 0)):
        is_valid = isinstance(ids, list) and ids and all(type(layer) is int and layer >= min_id for layer in ids)
        if ids is not None and (not is_valid or len(set(ids)) < len(ids)):
            raise ValueError(f"{name} is {ids!r}; expected layer numbers, each once")
    taps = entry_ids if exits is None else [layer + 1 for layer in exits]
    if taps is None:
        raise ValueError(
            f"the config has no {EXIT_LAYERS}; expected the target layers that the head was trained to read: others "
            "fit its tensors as well, so there is no default"
        )
    if entry_ids is not None and taps != entry_ids:
        raise ValueError(
            f"{EXIT_LAYERS} is {exits}, layers that the streams leave, and {ENTRY_LAYERS} is {entry_ids}, layers that "
            "they enter; expected the latter to be one more, or one of the two alone"
        )
    return tuple(taps)


def _causal_layers(
    entries: Mapping[str, Any], inner: Mapping[str, Any], layers: LlamaConfig, default: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Returns the layers whose attention is causal within the block.

    If the config states neither all nor none: `default`, or if that is None the layers with a window.
    """
    all_layers = range(layers.num_hidden_layers)
    for level, name in ((entries, "is_causal"), (inner, "causal"), (inner, "causal_head")):
        if level.get(name) is not None:
            return tuple(all_layers) if hf_values.flag(level, name, False) else ()
    return tuple(i for i in all_layers if layers.window(i) is not None) if default is None else default


def _agreed_value(entries: Mapping[str, Any], inner: Mapping[str, Any], name: str) -> Any:
    """Returns an entry's value from either level, or None. Raises ValueError if the levels disagree."""
    found = [level[name] for level in (inner, entries) if level.get(name) is not None]
    if len(found) == 2 and found[0] != found[1]:
        raise ValueError(f"{name} is {found[0]!r} in {NESTED} and {found[1]!r} outside it; expected them to agree")
    return found[0] if found else None


def _checked_size(entries: Mapping[str, Any], name: str, size: int) -> int:
    """Returns the tensors' `size`. Raises ValueError if the config states another."""
    if hf_values.integer(entries, name, size) != size:
        raise ValueError(f"{name}={entries[name]} in the config, and the tensors make {size}; expected them to agree")
    return size


def _draft_vocab_size(info: Mapping[str, TensorInfo], entries: Mapping[str, Any], vocab_size: int) -> int | None:
    """Returns the rows of the head's output matrix; None if the head uses the target's, for the whole vocabulary."""
    rows = info[OUTPUT].shape[0] if OUTPUT in info and info[OUTPUT].shape else None
    if rows is None and entries.get("draft_vocab_size") not in (None, vocab_size):
        raise ValueError(f"draft_vocab_size={entries['draft_vocab_size']}, and there is no {OUTPUT}; expected one")
    _checked_size(entries, "draft_vocab_size", vocab_size if rows is None else rows)
    return rows
