"""What the halves of a decoder layer, and heads made of them, are given."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.cache import KV


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


class HeadWeights(NamedTuple):
    """Weights of an EAGLE-1 head of one layer, whose first half has no norm.

    Attributes:
        fc: in strips.
        bias: of `fc`; empty where it has none.
        output: the matrix of the logits, in strips; without any there are no logits.
        eps: of the second half's norm.
        inner: numbers between the weights of the MLP.
        factor: scores of attention are multiplied by it.
    """

    fc: Float[Array, "s _ _"]
    bias: Float[Array, "_"]
    mixing: Mixing
    gated: Gated
    output: Float[Array, "t _ _"]
    eps: float
    inner: int
    factor: float


class ChainOf(NamedTuple):
    """What a chain of guesses begins with, and how its tokens become embeddings.

    Attributes:
        guess: the head's output at the root.
        table: of the target's embeddings, in strips.
        ids: target ids of the head's tokens; empty where they are the same.
        sharpness: scores are `log_softmax(sharpness * logits)`.
        least: score of a path from which on nothing is drafted below it.
    """

    guess: Float[Array, "1 h"]
    table: Float[Array, "s _ _"]
    ids: Int[Array, "_"]
    sharpness: float
    least: float


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
