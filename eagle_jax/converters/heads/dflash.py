"""DFlash heads on disk, in their authors' format (z-lab/dflash); JetSpec's is the same with `causal_head`.

DFlash 2's and DSpark's heads have more tensors and keys (`dflash_edges`).

    fc.weight [h, n t]            n of the target's residual streams, side by side, to one feature
    hidden_norm.weight, norm.weight, layers.{i}.*    Qwen3's decoder layers
    lm_head.weight, embed_tokens.weight, d2t, t2d    absent in the authors' own: the target's serve the head
    config.json                   a Qwen3's keys, block_size, num_target_layers, and in `dflash_config`
                                  mask_token_id and target_layer_ids

`dflash_config` reads and writes `config.json`.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import names, pickles, quant_config, reading
from eagle_jax.converters.files import Weights, read_json
from eagle_jax.converters.heads import dflash_edges, dflash_nested, window
from eagle_jax.converters.heads.dflash_config import ARCHITECTURE, entries_for, read_config
from eagle_jax.converters.heads.eagle import own_embedding, verifier_for
from eagle_jax.converters.heads.eagle_entries import Verifier
from eagle_jax.converters.heads.eagle_formats import D2T, EMBEDDING, OUTPUT, T2D
from eagle_jax.converters.heads.entries import HEAD_TYPE
from eagle_jax.converters.heads.kinds import CheckedHead
from eagle_jax.converters.heads.vocabulary import mapping_tensors, read_vocabulary
from eagle_jax.converters.overrides import with_changes
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.converters.writing import MODEL_FILE, write_folder
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme

MASK = "mask_embedding"  # a tensor among the others, or alone in a file of PyTorch's
SIDE_FILE = f"{MASK}.pt"
_READ_ASIDE = ("embed_tokens", MASK)

RULES = (
    names.Rule("fc.weight", "fc/weight"),
    names.Rule("hidden_norm.weight", "hidden_norm/scale"),
    names.Rule("norm.weight", "norm/scale"),
    *names.decoder_layer(""),
    names.Rule(OUTPUT, "lm_head/weight"),
    names.Rule(EMBEDDING, "embed_tokens/embedding"),
    names.Rule(MASK, MASK),
    *dflash_edges.RULES,
)

FORMATS = ("dflash", "speculators")


def kind_of(info: Mapping[str, TensorInfo]) -> str | None:
    """Detects a DFlash head, or one of a method built on it, which its config states."""
    return "dflash" if "hidden_norm.weight" in info and "fc.weight" in info else None


def format_of(entries: Mapping[str, Any]) -> str:
    return "speculators" if HEAD_TYPE in entries else "dflash"


def check(weights: Weights, target: LlamaConfig | None) -> CheckedHead:
    config, _ = read_head(weights, {})
    slots = names.slots(dflash_edges.rules_for(RULES, weights.info), shapes(config))
    return CheckedHead(config, slots, MODEL_FILE, {}, (SIDE_FILE,))


def load(weights: Weights, target: LM, dtype: Any, changes: Mapping[str, Any], scheme: Scheme | None) -> DFlash:
    """Loads a head; an embedding with the target's values is dropped."""
    config, ids = read_head(weights, changes)
    _check_fit(weights.folder, config, target.config)
    embedding = own_embedding(weights, config, target) if config.own_embedding else None
    config = dataclasses.replace(config, own_embedding=embedding is not None)
    float_dtype = names.stored_dtype(weights, "fc.weight") if dtype is None else dtype
    param_shapes = {name: value for name, value in shapes(config).items() if name not in _READ_ASIDE}
    params = reading.read_params(
        weights, dflash_edges.rules_for(RULES, weights.info), param_shapes, float_dtype, scheme=scheme
    )
    if embedding is not None:
        params["embed_tokens"] = {"embedding": jnp.asarray(embedding).astype(float_dtype)}
    mask = mask_embedding(weights, config.layers.hidden_size)
    if mask is not None:
        params[MASK] = jnp.asarray(mask).astype(float_dtype)
    return DFlash(params=params, config=config, vocabulary=None if ids is None else jnp.asarray(ids, jnp.int32))


def save(head: DFlash, folder: pathlib.Path, format: str | None, target: LM | None, target_name: str | None) -> None:
    entries = entries_of(format or "dflash", head.config, head.dtype.name, verifier_for(target, target_name))
    entries |= quant_config.params_entry(RULES, head.stored_params)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        yield from names.tensors(RULES, head.stored_params)
        if head.vocabulary is not None:
            yield from mapping_tensors(np.asarray(head.vocabulary), head.config.layers.vocab_size)

    write_folder(folder, entries, tensors())


def read_head(weights: Weights, changes: Mapping[str, Any]) -> tuple[DFlashConfig, np.ndarray | None]:
    """Holds the files of a head against its `config.json`: the config, and target ids of the drafted tokens if not all.

    Args:
        changes: entries that take the place of those in `config.json`.

    Raises:
        ValueError: a head that is not understood.
    """
    path = weights.folder / "config.json"
    try:
        entries = quant_config.without_quantization(with_changes(read_json(path), window.config_entries(changes)))
        flat = dflash_nested.flattened(entries, ARCHITECTURE) if HEAD_TYPE in entries else entries
        config = read_config(weights.info, flat)
        config = dataclasses.replace(config, layers=window.with_window(config.layers, changes))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    drafted = config.draft_vocab_size
    aside = [dflash_nested.VERIFIER_TENSORS, MASK] if HEAD_TYPE in entries else [MASK]
    aside += [] if drafted is None else map(re.escape, (D2T, T2D))
    names.check(weights, dflash_edges.rules_for(RULES, weights.info), shapes(config), aside)
    config = dataclasses.replace(config, own_mask_embedding=MASK in weights.info or _mask_file(weights).exists())
    return config, None if drafted is None else read_vocabulary(weights, drafted, config.layers.vocab_size)


def mask_embedding(weights: Weights, size: int) -> np.ndarray | None:
    """Returns the vector `[size]` that takes the place of the mask token's embedding; None if there is none.

    Raises:
        ValueError: it is of another size, or there are two.
    """
    side = _mask_file(weights)
    if MASK in weights.info and side.exists():
        raise ValueError(f"{weights.folder} holds a tensor {MASK} and {side.name}; expected one of them")
    if MASK not in weights.info and not side.exists():
        return None
    vector = weights.take(MASK) if MASK in weights.info else pickles.load_tensor(side)
    if vector.size != size:
        raise ValueError(f"{MASK} in {weights.folder} has shape {list(vector.shape)}; expected {size} numbers")
    return vector.reshape(size)


def _mask_file(weights: Weights) -> pathlib.Path:
    return weights.folder / SIDE_FILE


def entries_of(format: str, config: DFlashConfig, dtype: str, verifier: Verifier) -> dict[str, Any]:
    """Returns the `config.json` of a head in the authors' format ("dflash"), or in that of speculators."""
    nested = format == "speculators"
    return dflash_nested.entries_for(config, dtype, verifier) if nested else entries_for(config, dtype)


@functools.cache
def shapes(config: DFlashConfig) -> names.Params:
    """Returns the parameter tree, of shapes; not to be changed."""
    return jax.eval_shape(functools.partial(DFlash.init, config), jax.random.key(0)).params


def _check_fit(folder: pathlib.Path, config: DFlashConfig, target: LlamaConfig) -> None:
    """Refuses a head that was made for another target."""
    target_facts = {
        "hidden_size": config.target_hidden_size,
        "vocab_size": config.layers.vocab_size,
        "num_hidden_layers": target.num_hidden_layers if config.num_target_layers is None else config.num_target_layers,
    }
    for name, expected in target_facts.items():
        if getattr(target, name) != expected:
            raise ValueError(
                f"the head in {folder} was made for a target with {name}={expected}; this one has "
                f"{getattr(target, name)}, so it is another model"
            )
    if max(config.taps) > target.num_hidden_layers:
        raise ValueError(
            f"the head in {folder} reads layers {list(config.taps)} of its target; this one has "
            f"{target.num_hidden_layers}, so it was made for another model"
        )
    if target.scales_edges and (not config.own_embedding or config.draft_vocab_size is None):
        raise ValueError(
            f"the head in {folder} reads the embedding and output matrix of a target that scales or caps "
            "what comes of them, as Gemma does; expected a target that does not, or a head with its own"
        )
