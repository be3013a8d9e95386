"""Builds the attention inputs of a DFlash head: blocks of slots after their context."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.models.attention_inputs import attention_inputs
from eagle_jax.models.cache import Cache
from eagle_jax.ops import AttentionInputs


def block_inputs(
    config: DFlashConfig,
    positions: Int[Array, "b n"],
    cache: Cache,
    slots: int,
    context: Int[Array, "b r"] | None = None,
) -> tuple[AttentionInputs, ...]:
    """Returns the inputs of each layer's attention; computed once for all layers of a kind.

    A slot sees slots of its own block, and rows of the context that stand before the block. In a window of w a slot at
    position i sees positions above i - w, and below i + w: the same number both ways.

    Args:
        positions: of blocks of `slots` each.
        context: positions of rows of text that are not in the cache; None if there are none.
    """
    layers, by_kind = config.layers, dict[tuple[int | None, bool], AttentionInputs]()
    context = positions[:, :0] if context is None else context
    block, roots = jnp.arange(positions.shape[1]) // slots, jnp.repeat(positions[:, ::slots], slots, axis=1)
    before = context[:, None, :] < roots[:, :, None]
    same_block = (block[:, None] == block[None])[None]
    ahead = positions[:, None, :] - positions[:, :, None]  # [b, n, n]: how many positions the seen row is after the row
    fresh_positions = jnp.concatenate([context, positions], axis=1)
    kinds = [(layers.window(i), i in config.causal_layers) for i in range(layers.num_hidden_layers)]
    for i, (window, is_causal) in enumerate(kinds):
        if (window, is_causal) not in by_kind:
            max_distance = 0 if is_causal else slots if window is None else window - 1
            visible = jnp.concatenate([before, same_block & (ahead <= max_distance)], axis=2)
            by_kind[window, is_causal] = attention_inputs(layers, positions, visible, cache, fresh_positions, layer=i)
    return tuple(by_kind[kind] for kind in kinds)
