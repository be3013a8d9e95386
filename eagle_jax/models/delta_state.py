"""The state of a layer with the gated delta rule: a matrix for each head, and the convolution's last inputs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax import ops
from eagle_jax.configs.target import DeltaNet
from eagle_jax.models.cache import LayerState
from eagle_jax.ops import LayerRows
from eagle_jax.struct import pytree


@pytree
class DeltaState(LayerState):
    """A state without slots: each token changes all of it, and a path of nodes is committed by what its tokens add.

    Attributes:
        memory: the state S of `ops.gated_delta`, in float32.
        window: inputs of the convolution of the last tokens, zeros before the first one.
    """

    memory: Float[Array, "u h c d"]
    window: Float[Array, "u 1 w e"]

    by_position = False

    @staticmethod
    def empty(config: DeltaNet, batch: int, dtype: DTypeLike) -> "DeltaState":
        """Returns the state before the first token; `dtype` is the dtype of activations."""
        memory = batch, config.num_value_heads, config.key_head_dim, config.value_head_dim
        window = batch, 1, config.conv_kernel - 1, config.channels
        return DeltaState(memory=jnp.zeros(memory, jnp.float32), window=jnp.zeros(window, dtype))

    def at(self, rows: Int[Array, "b"] | None) -> "DeltaState":
        """Returns the state of some rows."""
        return self if rows is None else jax.tree.map(lambda x: x[rows], self)

    def write(
        self, fresh: LayerRows, start: Int[Array, "b"], count: Int[Array, "b"], rows: Int[Array, "b"] | None
    ) -> "DeltaState":
        old = self.at(rows)
        inputs = jnp.concatenate([old.window, fresh.inputs.astype(old.window.dtype)], axis=2)
        index = count[:, None] + jnp.arange(old.window.shape[2], dtype=jnp.int32)[None]
        new = DeltaState(
            memory=ops.memory_after(old.memory, fresh.k, fresh.u, fresh.g, count),
            window=jnp.take_along_axis(inputs, index[:, None, :, None], axis=2),
        )

        def put(rows_before: Array, part: Array) -> Any:
            return part if rows is None else rows_before.at[rows].set(part)

        return jax.tree.map(put, self, new)
