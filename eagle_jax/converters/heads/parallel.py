"""Shared code for Medusa and Hydra heads on disk, which exist in their authors' format only."""

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
from eagle_jax.converters.overrides import overlaid
from eagle_jax.converters.writing import write_folder
from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.heads import Heads
from eagle_jax.models.quant import Scheme


class Found(NamedTuple):
    """Heads in a folder, checked by name, shape and dtype; no weight has been read.

    Attributes:
        config: what the tensors make, a `MedusaConfig` or `HydraConfig`.
        rules: what the tensors are called.
        aside: regular expressions of tensors that may lie in the same folder.
    """

    config: Any
    rules: tuple[names.Rule, ...]
    aside: tuple[str, ...]


def find(weights: Weights, changes: Mapping[str, Any], read: Callable[[dict[str, Any]], Found]) -> Found:
    """Holds the files of heads against their `config.json`.

    Args:
        changes: entries that take the place of those in `config.json`.
        read: makes config and table of the entries.

    Raises:
        ValueError: heads that are not understood.
    """
    path = weights.folder / "config.json"
    entries = overlaid(read_json(path), window.config_entries(changes))
    try:
        files = read(quant_config.without(entries))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    names.check(weights, files.rules, shapes(files.config), files.aside)
    return files


def load(weights: Weights, files: Found, target: LlamaConfig, dtype: Any, scheme: Scheme | None) -> AnyHead:
    """Returns the heads that were found in these files."""
    _check_fit(weights.folder, files.config, target)
    param_shapes = shapes(files.config)
    first = next(key for key in names.expected(files.rules, param_shapes))
    float_dtype = names.stored_dtype(weights, first) if dtype is None else dtype
    params = reading.read_params(weights, files.rules, param_shapes, float_dtype, scheme=scheme)
    return _network(files.config)(params=params, config=files.config)


def save(head: Heads, folder: pathlib.Path, rules: tuple[names.Rule, ...], entries: dict[str, Any], file: str) -> None:
    """Writes heads with this `config.json`."""
    entries |= quant_config.describing(rules, head.stored_params)
    write_folder(folder, entries, names.tensors(rules, head.stored_params), file)


@functools.cache
def shapes(config: MedusaConfig | HydraConfig) -> names.Params:
    """Returns the parameter tree, of shapes; not to be changed."""
    return jax.eval_shape(functools.partial(_network(config).init, config), jax.random.key(0)).params


def _network(config: MedusaConfig | HydraConfig) -> Any:
    return HEAD_KINDS[config.kind].get("network")


def _check_fit(folder: pathlib.Path, config: MedusaConfig | HydraConfig, target: LlamaConfig) -> None:
    """Refuses heads that were made for another target."""
    for name, template in (("hidden_size", "hidden states of {} numbers"), ("vocab_size", "a vocabulary of {} tokens")):
        head_size, target_size = getattr(config, name), getattr(target, name)
        if target_size != head_size:
            raise ValueError(
                f"the heads in {folder} were made for {template.format(head_size)}; the target has {target_size}, so "
                "it is another model than theirs"
            )
