"""Tree attention of requests that share one row of fresh tokens, which has no padding between them."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.ops.tree_attention import tree_attention
from eagle_jax.ops.types import KV, CachedKV, FlatRows


def flat_attention(
    q: Float[Array, "1 h f c"],
    fresh: KV,
    visible: Bool[Array, "1 f f"],
    prefix: CachedKV,
    length: Int[Array, "y"],
    first: Int[Array, "1 f"] | None,
    cache_rows: Int[Array, "y"] | None,
    flat: FlatRows,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Float[Array, "h"] | None = None,
) -> Float[Array, "1 h f c"]:
    """Computes `tree_attention` of each request's tokens over its own prefix and its own tokens; zeros at padding.

    Each request is padded to `flat.max_count` tokens, so that its keys are read once for all of its tokens. The added
    work is small compared with the projections, which have no padding.

    Args:
        visible: which tokens of the row each token attends to, all of the same request.
        flat: the layout of the requests' tokens. The other arguments are as in `tree_attention`.
    """
    token_indices, is_token = flat.token_indices, flat.is_token

    def by_request(rows: Float[Array, "1 heads f c"]) -> Float[Array, "y heads n c"]:
        return jnp.moveaxis(rows[0][:, token_indices], 0, 1)

    # zero times nan is nan, so a request must not read the rows of another one, even with weight 0
    keys, values = (jnp.where(is_token[:, None, :, None], by_request(part), 0) for part in fresh)
    attended = tree_attention(
        *(by_request(q), (keys, values), flat.visible_by_request(visible), prefix, length),
        *(None if first is None else first[0][token_indices], cache_rows, flat.count),
        scale=scale,
        softcap=softcap,
        sinks=sinks,
    )
    return flat.in_row(attended.swapaxes(1, 2)).swapaxes(0, 1)[None]
