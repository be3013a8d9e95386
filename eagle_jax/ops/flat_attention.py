"""Tree attention of requests whose fresh tokens share one row without padding between them."""

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

    The linear maps have a row for each token. Here each request gets `flat.most` rows, so its keys are read once for
    all of its tokens; the additional work is small compared with the projections.

    Args:
        visible: which tokens of the row each token attends to, within its request.
        flat: layout of the row. The rest is as in `tree_attention`.
    """
    token_indices, is_token = flat.token_indices, flat.is_token

    def by_request(rows: Float[Array, "1 heads f c"]) -> Float[Array, "y heads n c"]:
        return jnp.moveaxis(rows[0][:, token_indices], 0, 1)

    # masked values have weight 0, but 0 * nan is nan: no request may read another's values
    keys, values = (jnp.where(is_token[:, None, :, None], by_request(part), 0) for part in fresh)
    attended = tree_attention(
        *(by_request(q), (keys, values), flat.visible_by_request(visible), prefix, length),
        *(None if first is None else first[0][token_indices], cache_rows, flat.count),
        scale=scale,
        softcap=softcap,
        sinks=sinks,
    )
    return flat.in_row(attended.swapaxes(1, 2)).swapaxes(0, 1)[None]
