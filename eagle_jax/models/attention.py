"""What sliding windows leave to be seen; the attention itself is `kernels.tree_attention`."""

from jaxtyping import Array, Bool, Int


def first_slot(positions: Int[Array, "b n"], window: int | None) -> Int[Array, "b n"] | None:
    """First committed slot that each token sees; None is all of them."""
    return None if window is None else positions - window + 1


def window_mask(
    visible: Bool[Array, "b n m"], positions: Int[Array, "b n"], fresh_positions: Int[Array, "b m"], window: int | None
) -> Bool[Array, "b n m"]:
    """`visible`, cut to the sliding window."""
    if window is None:
        return visible
    return visible & (fresh_positions[:, None] > positions[..., None] - window)
