"""Layouts of a batch's tree nodes in the target's pass: by request with padding, or all in one row without."""

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


class NodeRows(abc.ABC):
    """The rows of a pass over the nodes of trees."""

    @abc.abstractmethod
    def spread(self, values: T) -> T:
        """Returns values of all nodes, `[b n ..]`, for drawing: by request, or as if each node were a request."""

    @abc.abstractmethod
    def to_draw(self, rows: Array) -> Array:
        """Returns the rows of the pass as `spread` has them."""

    @abc.abstractmethod
    def settings(self, values: T) -> T:
        """Returns the values of each request, `[b ..]`, for the rows of `spread`."""

    @abc.abstractmethod
    def noise(self, by_depth: Float[Array, "b d v"], depth: Int[Array, "b n"]) -> Array:
        """Returns the noise of each depth for the nodes at these depths, as `spread` has them."""

    @abc.abstractmethod
    def collect(self, values: Array) -> Array:
        """Returns values as `spread` has them for all nodes, `[b n ..]`; zeros of nodes that the pass leaves out."""

    @abc.abstractmethod
    def at(self, rows: Array, nodes: Int[Array, "b p"]) -> Array:
        """Returns the rows of the pass that are those of some nodes, `[b p ..]`; zeros of nodes that it leaves out."""

    @abc.abstractmethod
    def added_at(self, added: tuple[LayerRows, ...], nodes: Int[Array, "b p"]) -> tuple[LayerRows, ...]:
        """Returns what some nodes add to the state of each layer, `[b k p c]`: mostly their keys and values."""


@pytree
class ByRequest(NodeRows):
    """Each request has a row of the batch, and each of its nodes a place in it."""

    def spread(self, values: T) -> T:
        return values

    def to_draw(self, rows: Array) -> Array:
        return rows

    def settings(self, values: T) -> T:
        return values

    def noise(self, by_depth: Float[Array, "b d v"], depth: Int[Array, "b n"]) -> Array:
        return sampling.at_depth(by_depth, depth)

    def collect(self, values: Array) -> Array:
        return values

    def at(self, rows: Array, nodes: Int[Array, "b p"]) -> Array:
        return take_rows(rows, nodes)

    def added_at(self, added: tuple[LayerRows, ...], nodes: Int[Array, "b p"]) -> tuple[LayerRows, ...]:
        return jax.tree.map(lambda rows: rows_at(rows, nodes), added)


@pytree
class OneRow(NodeRows):
    """The valid nodes of all trees, one request's after the other's, in a row of f places; padding comes last.

    Draws are made as for a batch of f requests with a node each.

    Attributes:
        request, node: the request and the node at each place; any for padding.
        is_node: whether the place is not padding.
        valid: the nodes that have a place.
        place: the place of each node; any for an invalid one.
        begin, count: the first place of each request's nodes, and how many there are.
        nodes: maximum number of nodes of a request.
    """

    request: Int[Array, "f"]
    node: Int[Array, "f"]
    is_node: Bool[Array, "f"]
    valid: Bool[Array, "b n"]
    place: Int[Array, "b n"]
    begin: Int[Array, "b"]
    count: Int[Array, "b"]
    nodes: int = static()

    @staticmethod
    def of(valid: Bool[Array, "b n"], size: int) -> "OneRow":
        """Returns the layout of the valid nodes; there are at most `size` of them."""
        batch, nodes = valid.shape
        count = jnp.sum(valid, axis=1, dtype=jnp.int32)
        ranked = jnp.cumsum(valid.reshape(-1), dtype=jnp.int32) - 1
        index = jnp.arange(batch * nodes, dtype=jnp.int32)
        at = jnp.where(valid.reshape(-1), ranked, size)  # invalid nodes fall off the end
        source = jnp.zeros(size, jnp.int32).at[at].set(index, mode="drop")
        begin = jnp.cumsum(count, dtype=jnp.int32) - count
        return OneRow(
            request=source // nodes,
            node=source % nodes,
            is_node=jnp.arange(size, dtype=jnp.int32) < jnp.sum(count),
            valid=valid,
            place=jnp.minimum(ranked, size - 1).reshape(valid.shape),
            begin=begin,
            count=count,
            nodes=nodes,
        )

    @property
    def rows(self) -> FlatRows:
        """The same for the layers of the target."""
        return FlatRows(request=self.request, begin=self.begin, count=self.count, most=self.nodes)

    def row(self, values: Array) -> Array:
        """Returns the values of all nodes, `[b n ..]`, in the row, `[f ..]`."""
        return values[self.request, self.node]

    def inputs(
        self, tokens: Int[Array, "b n"], positions: Int[Array, "b n"], ancestors: Bool[Array, "b n n"]
    ) -> tuple[Int[Array, "1 f"], Int[Array, "1 f"], Bool[Array, "1 f f"]]:
        """Returns the inputs of the target's pass over the trees."""
        at = jnp.where(self.is_node, self.row(positions), PADDING_POSITION)
        return self.row(tokens)[None], at[None], self._visible(ancestors)[None]

    def _visible(self, ancestors: Bool[Array, "b n n"]) -> Bool[Array, "f f"]:
        """Returns which nodes of the row each one sees; padding sees itself."""
        is_same_request = self.row(ancestors)[:, self.node] & (self.request[:, None] == self.request[None])
        both = self.is_node[:, None] & self.is_node[None]
        return (is_same_request & both) | jnp.eye(len(self.request), dtype=bool)

    def spread(self, values: T) -> T:
        return jax.tree.map(lambda leaf: self.row(leaf)[:, None], values)

    def to_draw(self, rows: Array) -> Array:
        return rows.swapaxes(0, 1)

    def settings(self, values: T) -> T:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[self.request], values)

    def noise(self, by_depth: Float[Array, "b d v"], depth: Int[Array, "b n"]) -> Array:
        return by_depth[self.request, self.row(depth)][:, None]

    def collect(self, values: Array) -> Array:
        return self._zero_invalid(values[:, 0][self.place], self.valid)

    def at(self, rows: Array, nodes: Int[Array, "b p"]) -> Array:
        is_valid = jnp.take_along_axis(self.valid, nodes, axis=1)
        return self._zero_invalid(rows[0][jnp.take_along_axis(self.place, nodes, axis=1)], is_valid)

    def added_at(self, added: tuple[LayerRows, ...], nodes: Int[Array, "b p"]) -> tuple[LayerRows, ...]:
        places, is_valid = (jnp.take_along_axis(of, nodes, axis=1) for of in (self.place, self.valid))

        def rows(part: Array) -> Array:
            return jnp.where(is_valid[:, None, :, None], jnp.moveaxis(part[0][:, places], 0, 1), 0)

        return jax.tree.map(rows, added)

    def _zero_invalid(self, values: Array, is_valid: Bool[Array, "b p"]) -> Array:
        """Zeroes the values of nodes without a place: `place` then points at another request's, which may be nan."""
        return jnp.where(is_valid.reshape(*is_valid.shape, *[1] * (values.ndim - 2)), values, 0)
