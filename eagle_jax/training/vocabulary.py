"""Which tokens a head should draft: the ones that answers are made of."""

import numpy as np
from jaxtyping import Int

from eagle_jax.training.data import Rows


def most_frequent(rows: Rows, size: int, vocab_size: int) -> tuple[Int[np.ndarray, " d"], float]:
    """Returns the `size` tokens that the assistant produced most often, and their share of all it produced.

    Ids ascend, as in published heads; of equally frequent tokens the lower id is first.

    Args:
        size: tokens of the draft vocabulary.
        vocab_size: tokens of the target's.
    """
    if not 1 <= size <= vocab_size:
        raise ValueError(f"a draft vocabulary of {size} tokens was asked for; expected 1 to {vocab_size}, the target's")
    counts: Int[np.ndarray, v] = np.bincount(rows.tokens[rows.answer], minlength=vocab_size)
    ids = np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)
    return ids, float(counts[ids].sum()) / max(float(counts.sum()), 1.0)
