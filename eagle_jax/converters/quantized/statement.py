"""A model folder's statement of how its weights are quantized: where, by which method, and what it leaves out."""

import dataclasses
import fnmatch
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

KEYS = ("quantization_config", "compression_config")
MLX_KEY = "quantization"
# Files that tools wrote before `config.json` had an entry, and the method that each is for.
SIDE_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
SKIPPED = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
# Values in whose place `EAGLE_JAX_ACTIVATIONS` decides.
_ACTIVATIONS = ("input_activations", "output_activations")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement:
    """The quantization that a folder states.

    Attributes:
        where: the entry of `config.json`, or the file.
        method: the method as the file names it.
        entries: everything else.
        is_separate_file: whether it is in a file of its own.
    """

    where: str
    method: str
    entries: Mapping[str, Any]
    is_separate_file: bool = False

    @property
    def quantizes_activations(self) -> bool:
        """Whether the model expects quantized activations."""
        groups = self.entries.get("config_groups")
        groups = groups.values() if isinstance(groups, Mapping) else ()
        by_group = any(group.get(key) for group in groups if isinstance(group, Mapping) for key in _ACTIVATIONS)
        scheme, algorithm = self.entries.get("activation_scheme"), str(self.entries.get("quant_algo"))
        weights_only = algorithm in ("None", "FP8_PB_WO", "W4A16_NVFP4")
        is_int8 = self.method == "bitsandbytes" and bool(self.entries.get("load_in_8bit"))
        return by_group or scheme is not None or not weights_only or is_int8 or self.method == "fbgemm_fp8"

    @property
    def quantizes_cache(self) -> bool:
        """Whether the model expects a quantized KV cache."""
        return any(self.entries.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo"))

    def leaves_out(self, module: str) -> str | None:
        """Returns the key of a list that names a module as not quantized; None if none does.

        Patterns are read narrowly: a whole module, the end of its name or one above it, `re:` and `*` as in
        compressed-tensors and ModelOpt. Libraries take `mlp.gate` for `mlp.gate_proj` too, where it is not meant.
        """
        for key in SKIPPED:
            patterns = self.entries.get(key)
            if not isinstance(patterns, list | None):
                raise ValueError(f"{key} of {self.where} is {patterns!r}; expected a list of modules: correct it")
            if patterns and any(_matches(str(pattern), module) for pattern in patterns):
                return key
        dynamic = self.entries.get("dynamic")
        rules = [str(rule) for rule in dynamic] if isinstance(dynamic, Mapping) else []
        first = next((rule for rule in rules if begins(re.sub("^[-+]:", "", rule), module)), "")
        return "dynamic" if first.startswith("-:") else None


def begins(pattern: str, module: str) -> bool:
    """Returns whether a module's name begins with what a regular expression describes.

    Raises:
        ValueError: the expression is not valid.
    """
    try:
        return re.match(pattern, module) is not None
    except re.error as error:
        raise ValueError(
            f"{pattern!r} among the modules that the quantization config names is no regular expression ({error}); "
            "correct it"
        ) from error


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return begins(pattern[3:], module)
    if "*" in pattern:
        return fnmatch.fnmatchcase(module, pattern)
    return f".{module}".endswith(f".{pattern}") or module.startswith(f"{pattern}.")


def stated_in(entries: Mapping[str, Any]) -> Statement | None:
    """Returns the quantization stated in the entries of a `config.json`, if any."""
    mlx = entries.get(MLX_KEY)
    if isinstance(mlx, Mapping):  # MLX states it as `quantization_config` too
        return Statement(where=MLX_KEY, method="mlx", entries=mlx)
    for key in KEYS:
        inner = entries.get(key)
        if isinstance(inner, Mapping) and inner:
            implied = "compressed-tensors" if "config_groups" in inner else "a method that it does not name"
            return Statement(where=key, method=str(inner.get("quant_method", implied)), entries=inner)
    return None


def stated_by(folder: pathlib.Path) -> Statement | None:
    """Returns the quantization that a folder states, in `config.json` or one of `SIDE_FILES`; None if it states none.

    Files that are not JSON are ignored here.
    """
    if not folder.is_dir():
        return None
    statement = stated_in(_entries(folder / "config.json"))
    if statement is not None:
        return statement
    for file, method in SIDE_FILES.items():
        entries = _entries(folder / file)
        inner = entries.get("quantization") if method == "modelopt" else entries
        if isinstance(inner, Mapping) and inner:
            return Statement(where=file, method=method, entries=inner, is_separate_file=True)
    return None


def _entries(path: pathlib.Path) -> Mapping[str, Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # readers that need the file report the error
    return entries if isinstance(entries, Mapping) else {}
