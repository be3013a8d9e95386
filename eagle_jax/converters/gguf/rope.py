"""Rotary settings of a GGUF file as `config.json` has them: entries of the metadata, and tensors of factors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from eagle_jax.configs.target import Rope
from eagle_jax.converters.gguf.file import GgufFile, plain
from eagle_jax.converters.hf.rope import longrope_scale
from eagle_jax.models.rope import frequencies

# Tensors of factors: what the frequencies are divided by, the same at any length, or beyond the first context and
# within it (LongRoPE).
FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
# Architecture -> those that its files may have; the others may have `FACTORS`.
TENSORS: Mapping[str, tuple[str, ...]] = {"phi3": (LONG, SHORT)}

# Entry after the architecture's name -> key of `rope_scaling`.
SETTINGS = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_QUERY_BETA = "llama_4_scaling_beta"
# The same for entries that only some architectures have.
OWN: Mapping[str, Mapping[str, str]] = {
    "mistral3": {
        "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
        "attention.temperature_scale": _QUERY_BETA,
    },
    "phi3": {"rope.scaling.attn_factor": "attention_factor"},
}
_YARN: Mapping[str, Mapping[str, Any]] = {"gpt-oss": {"truncate": False}, "mistral3": {"mscale": 1.0}}  # in no entry

# Llama 3.1 and later state their scaling as factors of the frequencies; the factor itself is the largest of them.
_LLAMA3: Mapping[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

_NOT_ROTATED = 1e30  # the divisor of a frequency that is 0


def rope_entries(file: GgufFile, metadata: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `rope_scaling` and the entries that go with it.

    Args:
        stated: entries about the model, by their names after the architecture's.
        entries: what is known of `config.json`: `head_dim`, `rope_theta`, `max_position_embeddings`.

    Raises:
        ValueError: tensors of factors with scaling of another kind, or factors of no kind that is known.
    """
    architecture = file.architecture
    names = SETTINGS | dict(OWN.get(architecture, {}))
    settings = {key: plain(metadata[name]) for name, key in names.items() if name in metadata}
    kind = settings.get("rope_type", "none")
    for factors, kinds in ((FACTORS, ("none",)), (LONG, ("none", "longrope"))):
        if factors in file.tensors and kind not in kinds:
            raise ValueError(f"{file.path} has {factors} and rope scaling of kind {kind!r}; expected one of them")
    if LONG in file.tensors or SHORT in file.tensors:
        return _longrope(file, settings, entries)
    unread = [] if kind == "yarn" else ["attention_factor", "mscale_all_dim"]
    if of_others := {name: settings[key] for name, key in names.items() if key in unread and key in settings}:
        raise ValueError(f"{file.path} has {of_others} and rope scaling of kind {kind!r}, which does not have them")
    return {"rope_scaling": _scaling(file, settings, entries, kind)}


def _scaling(
    file: GgufFile, settings: Mapping[str, Any], entries: Mapping[str, Any], kind: str
) -> dict[str, Any] | None:
    if FACTORS in file.tensors:
        return _llama3(file, entries)
    if kind == "yarn":
        return dict(_YARN.get(file.architecture, {})) | dict(settings)
    if _QUERY_BETA in settings:
        context = settings.get("original_max_position_embeddings", entries["max_position_embeddings"])
        scaling = {key: settings[key] for key in ("factor", _QUERY_BETA) if key in settings}
        return {
            "rope_type": "default" if kind == "none" else kind,
            "original_max_position_embeddings": context,
        } | scaling
    if kind == "none":
        return None
    return {key: settings[key] for key in ("rope_type", "factor") if key in settings}


def rotated_part(file: GgufFile) -> float:
    """Returns the part of a head that is rotated (Gemma 4's layers without a window): the pairs whose factor is 1.

    Raises:
        ValueError: no factors, or others than 1 in the first pairs and 1e30 in the rest.
    """
    factors = _floats(file, FACTORS)
    rotated = int(np.sum(factors == 1))
    if not rotated or np.any(factors[:rotated] != 1) or np.any(factors[rotated:] < _NOT_ROTATED):
        raise ValueError(
            f"{file.path} has rotary factors in {FACTORS} other than 1 and then {_NOT_ROTATED}; expected these"
        )
    return rotated / len(factors)


def _longrope(file: GgufFile, settings: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Phi-3's factors. The scale of cos and sin is stated only if it does not follow from the stretch."""
    long, short = ([plain(float(x)) for x in _floats(file, name)] for name in (LONG, SHORT))
    context = settings.get("original_max_position_embeddings", entries["max_position_embeddings"])
    scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    scale = settings.get("attention_factor", 1.0)
    if np.float32(scale) != np.float32(longrope_scale(entries["max_position_embeddings"] / context, context)):
        scaling["attention_factor"] = scale
    return {"rope_scaling": scaling, "original_max_position_embeddings": context}


def _llama3(file: GgufFile, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that the factors follow from, if they do.

    Raises:
        ValueError: the factors are others.
    """
    factors = _floats(file, FACTORS)
    unscaled = Rope(theta=entries["rope_theta"])
    scaled = Rope(theta=unscaled.theta, kind="llama3", factor=float(factors.max()), **_LLAMA3)
    expected = frequencies(unscaled, entries["head_dim"]) / frequencies(scaled, entries["head_dim"])
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ValueError(f"{file.path} has rotary factors in {FACTORS} unlike those of Llama 3.1; expected these")
    return {"rope_type": "llama3", "factor": scaled.factor, **_LLAMA3}


def _floats(file: GgufFile, name: str) -> np.ndarray:
    if name not in file.tensors:
        raise ValueError(f"{file.path} has no tensor {name}; expected the factors of its rotary embedding")
    return file.tensors[name].data.view(np.float32)
