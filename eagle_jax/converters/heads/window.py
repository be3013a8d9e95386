"""A sliding window for a draft head, chosen when it is loaded: `{"sliding_window": 512}` among changes of its config.

Heads are trained on short texts, and over long ones some draft better if they attend only to the last rows. Configs
state windows in several ways (`use_sliding_window`, `layer_types`, of each layer or of all, nested or not), and
DFlash's layers are causal where they have one; so this one is no entry of the config but takes the place of what was
read, in every layer.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.target import LlamaConfig

WINDOW = "sliding_window"


def config_entries(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes that are entries of `config.json`."""
    return {name: value for name, value in changes.items() if name != WINDOW}


def with_window(layers: LlamaConfig, changes: Mapping[str, Any]) -> LlamaConfig:
    """Returns the layers with the window that was asked for, if any; None takes away the one that they have.

    Raises:
        ValueError: not a positive whole number, or None.
    """
    if WINDOW not in changes:
        return layers
    window = changes[WINDOW]
    if window is not None and (type(window) is not int or not 1 <= window < 2**31):
        raise ValueError(f"{WINDOW}={window!r}; expected how many rows of the text a head's attention sees, or None")
    return dataclasses.replace(layers, sliding_window=window, full_attention_layers=())


def refuse(changes: Mapping[str, Any], head_type: str) -> None:
    """Refuses a window with ValueError for heads that have no attention over the text."""
    if WINDOW in changes:
        raise ValueError(f"{WINDOW}={changes[WINDOW]!r} for {head_type}, which do not attend to the text; leave it out")
