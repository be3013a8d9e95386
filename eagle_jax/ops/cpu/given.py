"""What the halves of a decoder layer, and heads made of them, are given."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int

from eagle_jax.ops.types import KV


class Mixing(NamedTuple):
    """Weights of the first half.

    Attributes:
        scale: of the norm; empty where rows are taken as they are.
        qkv: in strips, of each kv head its queries, its key, its value.
        o: in strips.
    """

    scale: Float[Array, "_"]
    qkv: Float[Array, "s _ _"]
    o: Float[Array, "t _ _"]


class Gated(NamedTuple):
    """Weights of the second half.

    Attributes:
        scale: of the norm.
        gate_up: in strips, all of the gate first.
        down: in strips.
    """

    scale: Float[Array, "h"]
    gate_up: Float[Array, "s _ _"]
    down: Float[Array, "t _ _"]


class Seen(NamedTuple):
    """What tokens see, and where they stand.

    Attributes:
        turns: rotary cosines and sines.
        beside: keys and values of earlier fresh tokens, none or more.
        visible: which of those, and then of their own, they see.
        prefix, length: the cache.
        wanted: rows, over all requests, from the first one on.
    """

    turns: tuple[Float[Array, "b n half"], Float[Array, "b n half"]]
    beside: KV
    visible: Bool[Array, "b n m"]
    prefix: KV
    length: Int[Array, "b"]
    wanted: Int[Array, ""]
