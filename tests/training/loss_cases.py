"""What the losses are compared on: one head of each kind and its objective, with weights and text drawn by its name."""

import numpy as np
from loss_parity import Case, drawn, drawn_text

LENGTH, VOCABULARY, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 14, 20, 8, 12, 2, 1, 4
EPS, THETA = 1e-5, 10000.0
PUBLISHED1 = {"steps": 1, "decay": 0.8, "feature_weight": 1.0, "distribution_weight": 0.1}
PUBLISHED3 = {"steps": 4, "decay": 0.8, "feature_weight": 0.0, "distribution_weight": 1.0}


CASES = tuple(
    Case(name, {"eagle3": name.startswith("eagle3"), "drafted": 0, "norms": False} | entries)
    for name, entries in {
        "eagle1_published": {"objective": PUBLISHED1},
        "eagle1_harmonised": {
            "objective": PUBLISHED1 | {"steps": 3, "feature_weight": 0.5, "distribution_weight": 1.0}
        },
        "eagle1_trimmed_acceptance": {
            "objective": PUBLISHED1 | {"steps": 2, "distribution_loss": "acceptance"},
            "drafted": 13,
        },
        "eagle3_published": {"objective": PUBLISHED3, "drafted": 13},
        "eagle3_norms": {"objective": PUBLISHED3 | {"feature_weight": 0.3}, "norms": True},
        "eagle3_acceptance": {"objective": PUBLISHED3 | {"steps": 2, "distribution_loss": "acceptance"}, "drafted": 13},
        "eagle1_text": {"objective": PUBLISHED1 | {"steps": 2, "distribution_loss": "text"}, "drafted": 13},
        "eagle3_tv_and_text": {
            "objective": PUBLISHED3 | {"steps": 2, "distribution_loss": "tv", "text_weight": 0.1},
            "drafted": 13,
        },
        "eagle3_hybrid": {
            "objective": PUBLISHED3 | {"steps": 2, "distribution_loss": "hybrid", "eta": 2.0},
            "drafted": 13,
        },
    }.items()
)


def state(case: Case) -> dict[str, np.ndarray]:
    """The head's weights, by their published names."""
    h, q, kv = HIDDEN, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    layer, wide = ("midlayer", 2 * h) if case.entries["eagle3"] else ("layers.0", h)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, 3 * h if case.entries["eagle3"] else 2 * h)}
    shapes |= {f"{layer}.self_attn.{name}_proj.weight": (rows, wide) for name, rows in (("q", q), ("k", kv), ("v", kv))}
    shapes[f"{layer}.self_attn.o_proj.weight"] = (h, q)
    shapes |= {f"{layer}.mlp.{name}_proj.weight": (INNER, h) for name in ("gate", "up")}
    shapes[f"{layer}.mlp.down_proj.weight"] = (h, INNER)
    shapes[f"{layer}.post_attention_layernorm.weight"] = (h,)
    if case.entries["eagle3"]:
        shapes |= {f"{layer}.{name}.weight": (h,) for name in ("hidden_norm", "input_layernorm")}
        shapes |= {"norm.weight": (h,), "lm_head.weight": (case.entries["drafted"] or VOCABULARY, h)}
    else:
        shapes["fc.bias"] = (h,)
    if case.entries["norms"]:
        shapes |= {f"fc_norm.{i}.weight": (h,) for i in range(3)}
    weights = drawn(case, shapes)
    if case.entries["drafted"] and not case.entries["eagle3"]:
        weights["lm_head.weight"] = text(case)["output"][text(case)["drafted"]]
    return weights


def text(case: Case) -> dict[str, np.ndarray]:
    """What `drawn_text` draws, with a question between two answers."""
    answer = np.arange(LENGTH)[None] >= np.array([[3], [6]])
    answer[0, 9] = False
    taps = 3 if case.entries["eagle3"] else 0
    return drawn_text(case, answer, tokens=VOCABULARY, vocabulary=VOCABULARY, hidden=HIDDEN, taps=taps)
