"""Layouts of a batch's tree nodes in the target's forward pass: padded per request, or flat with padding at the end."""

import abc
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding import sampling
from eagle_jax.decoding.rows import take_rows
from eagle_jax.models.cache import rows_at
from eagle_jax.models.target import PADDING_POSITION
from eagle_jax.ops import FlatRows, LayerRows
from eagle_jax.struct import pytree, static

T = TypeVar("T")


class NodeLayout(abc.ABC):
    """Converts between nodes `[b n ..]`, rows of the forward pass, and samples, the rows that tokens are drawn for."""

    @abc.abstractmethod
    def samples_of_nodes(self, values: T) -> T:
        """Returns the values of nodes, `[b n ..]`, as samples."""

    @abc.abstractmethod
    def samples_of_rows(self, rows: Array) -> Array:
        """Returns rows of the forward pass as samples."""

    @abc.abstractmethod
    def samples_of_requests(self, values: T) -> T:
        """Returns the values of requests, `[b ..]`, repeated for each row of samples."""

    @abc.abstractmethod
    def noise_of_samples(self, by_depth: Float[Array, "b d v"], depth: Int[Array, "b n"]) -> Array:
        """Returns the noise of each sample, given the noise of each depth and the depth of each node."""

    @abc.abstractmethod
    def nodes_of_samples(self, samples: Array) -> Array:
        """Returns samples as values of nodes, `[b n ..]`; zeros for nodes that are not in the forward pass."""

    @abc.abstractmethod
    def rows_at(self, rows: Array, nodes: Int[Array, "b p"]) -> Array:
        """Returns the rows of these nodes, `[b p ..]`; zeros for nodes that are not in the forward pass."""

    @abc.abstractmethod
    def layer_rows_at(self, layers: tuple[LayerRows, ...], nodes: Int[Array, "b p"]) -> tuple[LayerRows, ...]:
        """Returns the fresh K/V or other state rows of these nodes in each layer, `[b k p c]`."""


@pytree
class PaddedNodes(NodeLayout):
    """Each request has a row of the batch with all nodes of its tree; samples are nodes."""

    def samples_of_nodes(self, values: T) -> T:
        return values

    def samples_of_rows(self, rows: Array) -> Array:
        return rows

    def samples_of_requests(self, values: T) -> T:
        return values

    def noise_of_samples(self, by_depth: Float[Array, "b d v"], depth: Int[Array, "b n"]) -> Array:
        return sampling.at_depth(by_depth, depth)

    def nodes_of_samples(self, samples: Array) -> Array:
        return samples

    def rows_at(self, rows: Array, nodes: Int[Array, "b p"]) -> Array:
        return take_rows(rows, nodes)

    def layer_rows_at(self, layers: tuple[LayerRows, ...], nodes: Int[Array, "b p"]) -> tuple[LayerRows, ...]:
        return jax.tree.map(lambda rows: rows_at(rows, nodes), layers)


@pytree
class FlatNodes(NodeLayout):
    """The valid nodes of all trees in one row of f columns, request by request; padding comes last.

    Samples are drawn as for a batch of f requests with a node each.

    Attributes:
        request, node: request and node of each column; arbitrary for padding.
        is_node: whether the column is not padding.
        valid: which nodes have a column.
        column: column of each node; arbitrary for an invalid one.
        begin, count: first column of each request, and its number of valid nodes.
        max_nodes: maximum number of nodes of a request.
    """

    request: Int[Array, "f"]
    node: Int[Array, "f"]
    is_node: Bool[Array, "f"]
    valid: Bool[Array, "b n"]
    column: Int[Array, "b n"]
    begin: Int[Array, "b"]
    count: Int[Array, "b"]
    max_nodes: int = static()

    @staticmethod
    def of(valid: Bool[Array, "b n"], size: int) -> "FlatNodes":
        """Returns the layout of the valid nodes, at most `size`, in `size` columns."""
        batch, nodes = valid.shape
        count = jnp.sum(valid, axis=1, dtype=jnp.int32)
        rank = jnp.cumsum(valid.reshape(-1), dtype=jnp.int32) - 1
        index = jnp.arange(batch * nodes, dtype=jnp.int32)
        target = jnp.where(valid.reshape(-1), rank, size)  # `mode="drop"` drops invalid nodes
        source = jnp.zeros(size, jnp.int32).at[target].set(index, mode="drop")
        begin = jnp.cumsum(count, dtype=jnp.int32) - count
        return FlatNodes(
            request=source // nodes,
            node=source % nodes,
            is_node=jnp.arange(size, dtype=jnp.int32) < jnp.sum(count),
            valid=valid,
            column=jnp.minimum(rank, size - 1).reshape(valid.shape),
            begin=begin,
            count=count,
            max_nodes=nodes,
        )

    @property
    def flat_rows(self) -> FlatRows:
        """The layout for the layers of the target."""
        return FlatRows(request=self.request, begin=self.begin, count=self.count, max_count=self.max_nodes)

    def flatten(self, values: Array) -> Array:
        """Returns the values of nodes, `[b n ..]`, by column, `[f ..]`."""
        return values[self.request, self.node]

    def inputs(
        self, tokens: Int[Array, "b n"], positions: Int[Array, "b n"], ancestors: Bool[Array, "b n n"]
    ) -> tuple[Int[Array, "1 f"], Int[Array, "1 f"], Bool[Array, "1 f f"]]:
        """Returns tokens, positions and mask for the target's forward pass over the trees."""
        flat_positions = jnp.where(self.is_node, self.flatten(positions), PADDING_POSITION)
        return self.flatten(tokens)[None], flat_positions[None], self._visible(ancestors)[None]

    def _visible(self, ancestors: Bool[Array, "b n n"]) -> Bool[Array, "f f"]:
        """Returns which columns each column attends to; padding attends to itself."""
        is_ancestor = self.flatten(ancestors)[:, self.node] & (self.request[:, None] == self.request[None])
        are_nodes = self.is_node[:, None] & self.is_node[None]
        return (is_ancestor & are_nodes) | jnp.eye(len(self.request), dtype=bool)

    def samples_of_nodes(self, values: T) -> T:
        return jax.tree.map(lambda leaf: self.flatten(leaf)[:, None], values)

    def samples_of_rows(self, rows: Array) -> Array:
        return rows.swapaxes(0, 1)

    def samples_of_requests(self, values: T) -> T:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[self.request], values)

    def noise_of_samples(self, by_depth: Float[Array, "b d v"], depth: Int[Array, "b n"]) -> Array:
        return by_depth[self.request, self.flatten(depth)][:, None]

    def nodes_of_samples(self, samples: Array) -> Array:
        return self._zero_invalid(samples[:, 0][self.column], self.valid)

    def rows_at(self, rows: Array, nodes: Int[Array, "b p"]) -> Array:
        is_valid = jnp.take_along_axis(self.valid, nodes, axis=1)
        return self._zero_invalid(rows[0][jnp.take_along_axis(self.column, nodes, axis=1)], is_valid)

    def layer_rows_at(self, layers: tuple[LayerRows, ...], nodes: Int[Array, "b p"]) -> tuple[LayerRows, ...]:
        columns, is_valid = (jnp.take_along_axis(values, nodes, axis=1) for values in (self.column, self.valid))

        def rows(part: Array) -> Array:
            return jnp.where(is_valid[:, None, :, None], jnp.moveaxis(part[0][:, columns], 0, 1), 0)

        return jax.tree.map(rows, layers)

    def _zero_invalid(self, values: Array, is_valid: Bool[Array, "b p"]) -> Array:
        """Zeroes the values of nodes without a column, whose `column` points at some other node."""
        return jnp.where(is_valid.reshape(*is_valid.shape, *[1] * (values.ndim - 2)), values, 0)
