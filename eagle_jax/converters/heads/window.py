"""Sets a draft head's sliding window when it is loaded: `{"sliding_window": 512}` among the changes of its config.

Heads are trained on short texts; over long texts some draft better if they attend only to the last rows. Configs state
windows in several ways (`use_sliding_window`, `layer_types`, per layer or for all, nested or not), and DFlash's layers
with a window are causal. So the change is not made in the config's entries, but replaces the window of every layer
after the config is read.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.target import LlamaConfig

WINDOW = "sliding_window"


def config_entries(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes other than the window, which are entries of `config.json`."""
    return {name: value for name, value in changes.items() if name != WINDOW}


def with_window(layers: LlamaConfig, changes: Mapping[str, Any]) -> LlamaConfig:
    """Returns the layers with the requested window, if any; None removes their window.

    Raises:
        ValueError: the window is neither None nor a positive integer.
    """
    if WINDOW not in changes:
        return layers
    window = changes[WINDOW]
    if window is not None and (type(window) is not int or not 1 <= window < 2**31):
        raise ValueError(f"{WINDOW}={window!r}; expected how many rows of the text a head's attention sees, or None")
    return dataclasses.replace(layers, sliding_window=window, full_attention_layers=())


def refuse(changes: Mapping[str, Any], what: str) -> None:
    """Raises ValueError if a window is requested for heads without attention over the text."""
    if WINDOW in changes:
        raise ValueError(f"{WINDOW}={changes[WINDOW]!r} for {what}, which do not attend to the text; leave it out")
