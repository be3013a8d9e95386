"""Reads the sampling settings that a model's authors recommend, from its `generation_config.json`."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_jax.converters.files import is_gguf, read_json

log = logging.getLogger("eagle_jax.loading")

OPTIONS = {  # transformers' names, and `generate`'s
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_new_tokens",
    "min_new_tokens": "min_tokens",
}
# Unsupported entries that change transformers' output, with the values without effect.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "top_h": (),
    "guidance_scale": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "min_length": (0,),
    "max_length": (20,),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "stop_strings": ([],),
}


def generation_options(folder: Path) -> dict[str, Any]:
    """Returns the options of `generate` that the model's `generation_config.json` sets.

    They are logged, and so are the entries that are ignored: settings of other kinds of decoding, and values that are
    not numbers. Greedy decoding, `do_sample` false or missing, is temperature 0, even if a temperature is set.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / "generation_config.json"
    if is_gguf(folder) or not path.exists():
        return {}
    entries = {name: value for name, value in read_json(path).items() if value is not None}
    recommended = {name: entries[name] for name in OPTIONS if name in entries}
    options = {OPTIONS[name]: value for name, value in recommended.items() if _is_number(value)}
    if not entries.get("do_sample", False):
        sampling = ("temperature", "top_k", "top_p", "min_p")
        options = {name: value for name, value in options.items() if name not in sampling}
        options |= {"temperature": 0.0}
    elif "temperature" not in options:
        options["temperature"] = 1.0
    ignored = {name: value for name, value in recommended.items() if not _is_number(value)}
    ignored |= {name: entries[name] for name in UNSUPPORTED if _changes_output(entries, name)}
    if options != {"temperature": 0.0}:
        log.info("%s recommends %s; --generation-config follows it", path, _text(options))
    if ignored:
        log.warning("%s sets %s, which eagle_jax does not follow", path, _text(ignored))
    return options


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _changes_output(entries: Mapping[str, Any], name: str) -> bool:
    return name in entries and entries[name] not in UNSUPPORTED[name]


def _text(entries: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in entries.items())
