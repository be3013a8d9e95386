"""Reads and writes Medusa and Hydra heads: one format each, their authors', with a weight file of its own."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from eagle_jax.configs.heads import HydraConfig, MedusaConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import names, quant_config, reading
from eagle_jax.converters.files import Weights, read_json
from eagle_jax.converters.heads import window
from eagle_jax.converters.overrides import with_changes
from eagle_jax.converters.writing import write_folder
from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.heads import Heads
from eagle_jax.models.quant import Scheme


class Layout(NamedTuple):
    """Names and sizes of the heads in a folder; no weight has been read.

    Attributes:
        config: the `MedusaConfig` or `HydraConfig` that follows from the tensors.
        rules: table of tensor names.
        ignored: regular expressions of other tensors that the folder may hold.
    """

    config: Any
    rules: tuple[names.Rule, ...]
    ignored: tuple[str, ...]


def read_layout(weights: Weights, changes: Mapping[str, Any], read: Callable[[dict[str, Any]], Layout]) -> Layout:
    """Checks the files of heads against their `config.json`, by name, shape and dtype.

    Args:
        changes: entries that replace those in `config.json`.
        read: makes the layout from the entries.

    Raises:
        ValueError: the heads are not supported.
    """
    path = weights.folder / "config.json"
    entries = with_changes(read_json(path), window.config_entries(changes))
    try:
        layout = read(quant_config.without_quantization(entries))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    names.check(weights, layout.rules, shapes(layout.config), layout.ignored)
    return layout


def load(weights: Weights, layout: Layout, target: LlamaConfig, dtype: Any, scheme: Scheme | None) -> AnyHead:
    """Loads the heads in these files."""
    _check_fit(weights.folder, layout.config, target)
    param_shapes = shapes(layout.config)
    first = next(key for key in names.expected(layout.rules, param_shapes))
    load_dtype = names.stored_dtype(weights, first) if dtype is None else dtype
    params = reading.read_params(weights, layout.rules, param_shapes, load_dtype, scheme=scheme)
    return _network(layout.config)(params=params, config=layout.config)


def save(head: Heads, folder: pathlib.Path, rules: tuple[names.Rule, ...], entries: dict[str, Any], file: str) -> None:
    """Writes heads with this `config.json`."""
    entries |= quant_config.params_entry(rules, head.stored_params)
    write_folder(folder, entries, names.tensors(rules, head.stored_params), file)


@functools.cache
def shapes(config: MedusaConfig | HydraConfig) -> names.Params:
    """Returns the parameter tree with shapes as leaves; callers must not modify it."""
    return jax.eval_shape(functools.partial(_network(config).init, config), jax.random.key(0)).params


def _network(config: MedusaConfig | HydraConfig) -> Any:
    return HEAD_KINDS[config.kind].get("network")


def _check_fit(folder: pathlib.Path, config: MedusaConfig | HydraConfig, target: LlamaConfig) -> None:
    """Raises ValueError for heads that were trained for another target."""
    for name, template in (("hidden_size", "hidden states of {} numbers"), ("vocab_size", "a vocabulary of {} tokens")):
        head_size, target_size = getattr(config, name), getattr(target, name)
        if target_size != head_size:
            raise ValueError(
                f"the heads in {folder} were made for {template.format(head_size)}; the target has {target_size}, so "
                "it is another model than theirs"
            )
