"""The order of training rows: shuffled every epoch by the seed, resumable at any position."""

from typing import Any

import grain
import numpy as np
from jaxtyping import Int

from eagle_jax.training.data import Rows


class RowOrder:
    """Endless iterator over batches of row numbers, with a position for checkpoints."""

    def __init__(self, rows: Rows, size: int, seed: int):
        if size > len(rows):
            raise ValueError(
                f"an update takes {size} rows (batch times accumulate), but there are only {len(rows)}; "
                "lower batch or data.length, or give more conversations"
            )
        shuffled = grain.MapDataset.range(len(rows)).seed(seed).shuffle().repeat().batch(size, drop_remainder=True)
        # one thread suffices: the iterator only yields row numbers
        self._iterator = iter(shuffled.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)))
        self._text = {
            "rows": len(rows),
            "size": size,
            "crc": rows.crc,
        }

    def __next__(self) -> Int[np.ndarray, " rows"]:
        return next(self._iterator)

    @property
    def position(self) -> dict[str, Any]:
        """Position in the data and identity of the text, as JSON values."""
        return {"text": self._text, "iterator": self._iterator.get_state()}

    def restore(self, position: dict[str, Any], changed: str = "") -> None:
        """Continues from a position in the same text.

        Args:
            changed: description of changed data settings, for the error message.

        Raises:
            ValueError: the position belongs to another text.
        """
        if position["text"] != self._text:
            settings = f" ({changed})" if changed else ""
            raise ValueError(
                f"the text is not what the run was started with: {position['text']['rows']} rows then, "
                f"{self._text['rows']} now, or the same number of other rows{settings}; restore files and settings, "
                "or name another out"
            )
        self._iterator.set_state(position["iterator"])


def is_position(value: Any) -> bool:
    """Returns whether a value read from a file has the structure of `RowOrder.position`."""
    match value:
        case {"text": {"rows": int(), "size": int(), "crc": int()}, "iterator": dict()}:
            return True
    return False
