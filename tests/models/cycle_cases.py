"""Heads whose whole greedy steps are compared with PyTorch: one target, and heads that between them set every flag.

A random head guesses nothing right, so the weights are bent. The target's layers add little to the residual stream,
hence its next token depends mostly on the last one. The heads pass the embedding of the last token on, and add enough
of everything else that no flag of theirs goes unfelt.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from parity_cases import (
    HEADS,
    HEADS3,
    TARGETS,
    VOCABULARY,
    Case,
    head3_layers,
    head3_state,
    head_shapes,
    vocabulary_mapping,
    weights,
)

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
COUNT = 6  # steps after the prompt
TAPS = "eagle_aux_hidden_state_layer_ids"

TARGET = Case("cycle_target", TARGETS[0].entries)
_EAGLE, _EAGLE3 = HEADS[0].entries, {**HEADS3[0].entries, "num_key_value_heads": 4}
_DEEP, _DYNAMIC = ({"total": 14, "depth": depth, "top_k": 4} for depth in (3, 2))


def _case(name: str, base: Mapping[str, Any], tree: Any, flags: str, **entries: Any) -> Case:
    """A head's `config.json`, its tree, and the flags that must be felt in it (see `cycle_torch.ignoring`)."""
    return Case(f"cycle_{name}", {"head": {**base, **entries}, "tree": tree, "flags": flags.split()})


CYCLES = (
    _case("eagle1", _EAGLE, "static", "bias qkv_bias", qkv_bias=True),
    _case("eagle2", _EAGLE, _DEEP, "draft_vocab_size", bias=False, draft_vocab_size=36),
    _case("eagle3", _EAGLE3, _DEEP, "taps whole_vocabulary"),
    _case(
        "eagle3_trimmed", _EAGLE3, _DYNAMIC, "draft_vocab_size norm_before_fc norm_before_residual",
        draft_vocab_size=36, norm_before_fc=True, norm_before_residual=True,
    ),
    _case("eagle3_1", _EAGLE3, _DYNAMIC, "fc_norm norm_output", fc_norm=True, norm_output=True),
    _case(
        "eagle3_narrow", _EAGLE3, _DYNAMIC, "target_hidden_size head_dim",
        hidden_size=24, target_hidden_size=32, own_embedding=True, head_dim=12,
    ),
    _case(
        "eagle3_rope", _EAGLE3, _DYNAMIC, "rope_theta rope_scaling own_embedding qkv_bias",
        rope_theta=100.0, rope_scaling={"type": "linear", "factor": 3.0}, own_embedding=True, qkv_bias=True,
    ),
    _case(
        "eagle3_layers", _EAGLE3, _DYNAMIC, "num_hidden_layers sliding_window qk_norm",
        num_hidden_layers=2, sliding_window=5, qk_norm=True,
    ),
)  # fmt: skip


def target_state() -> dict[str, np.ndarray]:
    """The target's checkpoint, without the `model.` in front of its names."""
    h = TARGET.entries["hidden_size"]
    shapes = {name: shape for name, shape in head_shapes(TARGET.entries).items() if name.startswith("layers.")}
    shapes |= {"layers.0.input_layernorm.weight": (h,), "norm.weight": (h,)}
    shapes |= {"embed_tokens.weight": (VOCABULARY, h), "lm_head.weight": (VOCABULARY, h)}
    state = _softened(weights(TARGET, shapes), 0.2)
    return state | {name: state[name] * np.float32(h**0.5) for name in ("embed_tokens.weight", "lm_head.weight")}


def cycle_state(case: Case) -> dict[str, np.ndarray]:
    """A head's checkpoint."""
    drawn, head = Case(case.name, case.entries["head"]), case.entries["head"]
    return _eagle3(head, head3_state(drawn)) if TAPS in head else _eagle(drawn)


def _eagle(drawn: Case) -> dict[str, np.ndarray]:
    state = _softened(weights(drawn, head_shapes(drawn.entries)), 0.5)
    state["fc.weight"] = _through(state["fc.weight"], 1.0, 0.3)
    mapping = vocabulary_mapping(drawn)
    if mapping:
        state["lm_head.weight"] = target_state()["lm_head.weight"][mapping["t2d"]]
    return state | mapping


def _eagle3(head: Mapping[str, Any], state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    target, width, first = target_state(), head["hidden_size"], f"{head3_layers(head)[0]}.self_attn"
    for name, gain in (("q", 1.5), ("k", 1.0), ("v", 1.0), ("o", 3.0)):
        state[f"{first}.{name}_proj.weight"] = _through(state[f"{first}.{name}_proj.weight"], gain, 0.3)
    state["fc.weight"] *= np.float32(0.6)
    # safetensors would write what lies behind a view
    state["lm_head.weight"] = np.ascontiguousarray(target["lm_head.weight"][state.get("t2d", slice(None)), :width])
    if "embed_tokens.weight" in state:
        noise = state["embed_tokens.weight"] * np.float32(0.5 * width**0.5)
        state["embed_tokens.weight"] = target["embed_tokens.weight"][:, :width] + noise
    return state


def _through(drawn: np.ndarray, gain: float, error: float) -> np.ndarray:
    """A map that passes on the first of what it reads, times `gain`, with noise."""
    return (gain * np.eye(*drawn.shape) + error * drawn).astype(np.float32)


def _softened(state: Mapping[str, np.ndarray], strength: float) -> dict[str, np.ndarray]:
    """Layers that add this part of what they would."""
    last = ("o_proj.weight", "down_proj.weight")
    return {name: value * np.float32(strength) if name.endswith(last) else value for name, value in state.items()}
