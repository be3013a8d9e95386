"""A tiny P-EAGLE head and text, for its loss by our code and by PyTorch."""

import numpy as np

VOCABULARY, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, THETA, EPS = 23, 8, 12, 4, 2, 4, 500.0, 1e-5
DRAFTED, MASK_TOKEN, DEPTHS, DECAY = np.array([1, 2, 4, 5, 7, 8, 9, 11, 12, 14, 15, 17, 18, 20]), 22, 4, 0.9


def state() -> dict[str, np.ndarray]:
    """Weights by their names in a file; large enough for every one of them to matter."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCABULARY, HIDDEN),
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "mask_hidden": (3 * HIDDEN,),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (len(DRAFTED), HIDDEN),
        "layers.0.hidden_norm.weight": (HIDDEN,),
    }
    for i in range(2):
        entering, key = HIDDEN * (2 - i), f"layers.{i}"
        rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
        shapes |= {f"{key}.self_attn.{x}_proj.weight": (rows[x], entering) for x in "qkv"}
        shapes |= {f"{key}.self_attn.o_proj.weight": (HIDDEN, rows["q"])}
        shapes |= {f"{key}.{x}_layernorm.weight": (HIDDEN,) for x in ("input", "post_attention")}
        shapes |= {f"{key}.mlp.{x}_proj.weight": (INNER, HIDDEN) for x in ("gate", "up")}
        shapes |= {f"{key}.mlp.down_proj.weight": (HIDDEN, INNER)}
    draw = np.random.default_rng(3)
    return {
        name: (0.5 * draw.standard_normal(shape) + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def text() -> dict[str, np.ndarray]:
    """Two rows of ten tokens, what the target made of them, and its output matrix."""
    draw = np.random.default_rng(4)
    answer = np.stack([np.arange(10) >= 4, (np.arange(10) >= 1) & (np.arange(10) != 6)])
    return {
        "tokens": draw.integers(0, VOCABULARY - 1, (2, 10)).astype(np.int32),
        "answer": answer,
        "hidden": draw.standard_normal((2, 10, HIDDEN)).astype(np.float32),
        "taps": draw.standard_normal((3, 2, 10, HIDDEN)).astype(np.float32),
        "output": draw.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32),
    }
