"""What the losses of DFlash heads are compared on: one head of each kind and its objective, with weights and text drawn
by its name.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from loss_parity import Case, drawn, drawn_text

LENGTH, VOCABULARY, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, TAPS = 13, 20, 8, 12, 2, 1, 4, 2
LAYERS, BLOCK, MASK = 2, 4, 19
RANK, CANDIDATES, GROUP = 6, 3, 4
EPS, THETA = 1e-5, 10000.0
BASE = {"steps": 15, "decay": 0.7, "feature_weight": 0.0, "distribution_weight": 1.0}


PLAIN: Mapping[str, Any] = {
    **{"drafted": 0, "causal": False, "anchored": False, "objective": {}},
    **{"markov": None, "confidence": False, "convolution": False, "selector": False},
}
MIXTURE = {"distribution_loss": "tv", "distribution_weight": 1.8, "text_weight": 0.1}
DSPARK = {"anchored": True, "markov": "vanilla", "confidence": True, "objective": MIXTURE}
CASES = tuple(
    Case(name, PLAIN | entries, BASE)
    for name, entries in {
        "target": {},
        "causal": {"causal": True, "anchored": True},
        "text": {"objective": {"distribution_loss": "text"}, "drafted": 13},
        "tv_and_text": {"objective": MIXTURE},
        "tv_of_some": {"objective": {"distribution_loss": "tv"}, "drafted": 13},
        "d_pace": {"objective": {"distribution_loss": "text", "position_weights": "d_pace"}},
        "d_pace_of_some": {"objective": {"distribution_loss": "text", "position_weights": "d_pace"}, "drafted": 13},
        "dspark": DSPARK,
        "dspark_of_some": DSPARK | {"drafted": 13, "markov": "gated"},
        "dspark_recurrent": DSPARK | {"markov": "rnn", "objective": MIXTURE | {"confidence_weight": 0.5}},
        "dflash2": {"convolution": True, "selector": True},
        "dflash2_text": {"selector": True, "objective": {"distribution_loss": "text", "selector_weight": 0.5}},
        "dflash2_d_pace_of_some": {
            **{"convolution": True, "selector": True, "drafted": 13},
            "objective": {"distribution_loss": "text", "position_weights": "d_pace"},
        },
    }.items()
)


def state(case: Case) -> dict[str, np.ndarray]:
    """The head's weights, by their published names."""
    h, q, kv = HIDDEN, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, TAPS * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for i in range(LAYERS):
        layer = f"layers.{i}"
        shapes |= {
            f"{layer}.self_attn.{name}_proj.weight": (rows, h) for name, rows in (("q", q), ("k", kv), ("v", kv))
        }
        shapes |= {f"{layer}.self_attn.{name}_norm.weight": (HEAD_DIM,) for name in "qk"}
        shapes[f"{layer}.self_attn.o_proj.weight"] = (h, q)
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (INNER, h) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (h, INNER)
        shapes |= {f"{layer}.{name}_layernorm.weight": (h,) for name in ("input", "post_attention")}
        if case.entries["convolution"]:
            for name in ("attention_conv", "mlp_conv"):
                shapes[f"{layer}.{name}.base_kernel"] = (2, 2, h)
                shapes[f"{layer}.{name}.kernel_projection.weight"] = (2 * 2 * h // GROUP, h)
    drafted = case.entries["drafted"] or VOCABULARY
    if case.entries["drafted"]:
        shapes["lm_head.weight"] = (drafted, h)
    if case.entries["markov"]:
        shapes |= {"markov_head.markov_w1.weight": (VOCABULARY, RANK), "markov_head.markov_w2.weight": (drafted, RANK)}
    extra = {"gated": ("gate", RANK, h + RANK), "rnn": ("joint", 3 * RANK, h + 2 * RANK)}.get(case.entries["markov"])
    if extra is not None:
        name, rows, columns = extra
        shapes |= {f"markov_head.{name}_proj.weight": (rows, columns), f"markov_head.{name}_proj.bias": (rows,)}
    if case.entries["confidence"]:
        shapes |= {"confidence_head.proj.weight": (1, h + RANK), "confidence_head.proj.bias": (1,)}
    if case.entries["selector"]:
        shapes["candidate_selector.hidden_projection.weight"] = (RANK, h)
        shapes["candidate_selector.predecessor_codebook"] = (VOCABULARY, RANK)
        shapes["candidate_selector.successor_codebook"] = (drafted, RANK)
    return drawn(case, shapes)


def text(case: Case) -> dict[str, np.ndarray]:
    """What `drawn_text` draws, with a question between two answers, and no mask token."""
    answer = np.arange(LENGTH)[None] >= np.array([[2], [5]])
    answer[0, 8] = False
    return drawn_text(case, answer, tokens=MASK, vocabulary=VOCABULARY, hidden=HIDDEN, taps=TAPS)
