"""The order in which rows are learnt: shuffled anew each epoch by the seed alone, and continued from any position."""

from typing import Any

import grain
import numpy as np
from jaxtyping import Int

from eagle_jax.training.data import Rows


class Order:
    """Endless batches of row numbers. The position is grain's, and goes into the checkpoint."""

    def __init__(self, rows: Rows, size: int, seed: int):
        if size > len(rows):
            raise ValueError(
                f"an update takes {size} rows (batch times accumulate), but there are only {len(rows)}; "
                "lower batch or data.length, or give more conversations"
            )
        shuffled = grain.MapDataset.range(len(rows)).seed(seed).shuffle().repeat().batch(size, drop_remainder=True)
        # one thread: the rows are in memory, and what it reads is a few numbers
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
        """Where the order stands, and what text it is of; JSON."""
        return {"text": self._text, "iterator": self._iterator.get_state()}

    def go_to(self, position: dict[str, Any], changed: str = "") -> None:
        """Continues from a position of the same text.

        Args:
            changed: how settings of the data differ from what they were then, for the error where the text differs.

        Raises:
            ValueError: the position is of other text.
        """
        if position["text"] != self._text:
            settings = f" ({changed})" if changed else ""
            raise ValueError(
                f"the text is not what the run was started with: {position['text']['rows']} rows then, "
                f"{self._text['rows']} now, or the same number of other ones{settings}; bring the files and settings "
                "back, or name another out"
            )
        self._iterator.set_state(position["iterator"])


def is_position(value: Any) -> bool:
    """Returns whether something read from a file has the form of `Order.position`."""
    match value:
        case {"text": {"rows": int(), "size": int(), "crc": int()}, "iterator": dict()}:
            return True
    return False
