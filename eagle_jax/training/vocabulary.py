"""The choice of a draft vocabulary."""

import numpy as np
from jaxtyping import Int

from eagle_jax.training.data import Rows


def most_frequent_tokens(rows: Rows, size: int, vocab_size: int) -> tuple[Int[np.ndarray, " d"], float]:
    """Returns the ascending ids of the `size` tokens that are most frequent in answers, and their share of all answer
    tokens. Of equally frequent tokens, lower ids are preferred.
    """
    if not 1 <= size <= vocab_size:
        raise ValueError(f"draft_vocab_size={size}; expected 1 to {vocab_size}, the size of the target's vocabulary")
    counts: Int[np.ndarray, v] = np.bincount(rows.tokens[rows.answer], minlength=vocab_size)
    ids = np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)
    return ids, float(counts[ids].sum()) / max(float(counts.sum()), 1.0)
