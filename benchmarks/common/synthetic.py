"""Synthetic pairs: untrained models of published shapes whose acceptance is set by construction.

Speed depends on the shapes of the weights and on the mean acceptance length, not on the values of the weights. So a
target of a published shape is made on the device from a seed, with an EAGLE-3 head of the published shape that is right
about it as often as asked for (`chart.Error`):

    target   embeddings are random signs; every layer does its full work on random weights and adds little to them; the
             output matrix has, in the row of the token that follows v in the chart, the embedding of v
    head     slot i reads a feature, which stands for token i, and the embedding of token i + 1. Attention looks at the
             slot itself: a coordinate that is 1 in every embedding makes equal queries and keys everywhere, whose
             product is largest where rotary positions agree. Its values are the embedding minus the feature, so what
             leaves the layer stands for token i + 1, and is a feature again. The output matrix has the target's rows,
             but for tokens that it is to be mistaken about: there it has another's, or another's more strongly

What passes through the head's attention has as many coordinates as there are key/value heads times their size. Weights
are made one by one, quantized as they are made, and never on the host: a 70B target in int4 fits a GPU of 80 GB.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

import eagle_jax
from benchmarks.common.chart import Chart, Error
from eagle_jax.configs.heads import Eagle3Config
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import known_pair
from eagle_jax.converters.hub.sizes import HeadSizes, TargetSizes
from eagle_jax.models import layout
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme, schemes_of
from eagle_jax.ops.quantized import quantize

# What a shape is called here, and the published pair that has it; all get a head with 32,000 tokens.
PUBLISHED_SHAPES = {
    "7b": "llama-2-7b-chat",
    "8b": "llama-3.1-8b-instruct",
    "13b": "llama-2-13b-chat",
    "70b": "llama-3.3-70b-instruct",
}
DRAFTED = 32000
TINYLLAMA = TargetSizes(layers=22, hidden=2048, intermediate=5632, heads=32, kv_heads=4, head_dim=64, vocab=32000)
# For CPUs, with the size of their draft vocabularies. EAGLE's own code needs 7 layers or more.
OWN_SHAPES = {
    "tiny": (TargetSizes(layers=4, hidden=64, intermediate=96, heads=4, kv_heads=4, head_dim=16, vocab=256), 128),
    "small": (TargetSizes(layers=8, hidden=256, intermediate=768, heads=8, kv_heads=8, head_dim=32, vocab=2048), 1024),
    "1.1b": (TINYLLAMA, 8000),
}
NAMES = (*OWN_SHAPES, *PUBLISHED_SHAPES)

CHANGE = 0.1  # what all layers of a target together add to its residual stream, of its size
NOISE = 0.02  # random numbers in the head's matrices, of what they pass on
GAP = 16.0  # by how much attention's score of a slot itself exceeds that of the slot before
SURE = 2.2  # logarithm of how much likelier the head's first guess is than all others together
FIRST = 1.5  # of the first guess over the second, where that is the right one


class Shape(NamedTuple):
    """Configurations of a target and its head."""

    target: LlamaConfig
    head: Eagle3Config

    @staticmethod
    def of(name: str) -> "Shape":
        """The shape of a name.

        Raises:
            ValueError: there is no such shape.
        """
        if name not in NAMES:
            raise ValueError(f"shape {name!r} is not known; expected one of {', '.join(NAMES)}")
        pair = known_pair(PUBLISHED_SHAPES[name]) if name in PUBLISHED_SHAPES else None
        sizes, drafted = OWN_SHAPES[name] if pair is None else (pair.target_sizes, DRAFTED)
        head: Any = HeadSizes(target=sizes, kv_heads=sizes.kv_heads, drafted=drafted).config
        return Shape(target=sizes.config, head=head)


class Synthetic(NamedTuple):
    """A pair as `eagle_jax.load` would give it, and the chart that it follows."""

    model: eagle_jax.Model
    chart: Chart


def make(
    shape: Shape, error: Error, *, quantize: str | None = None, dtype: DTypeLike = jnp.bfloat16, seed: int = 0
) -> Synthetic:
    """A pair ready to decode with.

    Args:
        quantize: what weights are quantized to, as for `eagle_jax.load`.
    """
    chart = Chart.drawn(shape.target.vocab_size, shape.head.draft_vocab_size, error, seed)
    target_key, head_key = jax.random.split(jax.random.key(seed))
    scheme, head_scheme = schemes_of(quantize)
    target = _target(shape.target, chart, target_key, dtype, scheme)
    head = _head(shape.head, chart, target.params["embed_tokens"]["embedding"], head_key, head_scheme)
    model = eagle_jax.Model(  # laying weights out empties the dictionaries, so that no weight is there twice
        target=dataclasses.replace(target, params=layout.for_decoding(target.params, target.config.head_dim)),
        head=dataclasses.replace(head, params=layout.for_decoding(head.params, head.head_dim)),
        tokenizer=None,
        stop_ids=(),
        context=target.config.max_position_embeddings,
    )
    return Synthetic(model=model, chart=chart)


def _target(config: LlamaConfig, chart: Chart, key: jax.Array, dtype: DTypeLike, scheme: Scheme | None) -> LM:
    size, faint = config.hidden_size, CHANGE / math.sqrt(2 * config.num_hidden_layers)
    embedding = _signs(key, (config.vocab_size, size), dtype)

    def leaf(path: str, own: jax.Array, like: jax.ShapeDtypeStruct) -> Array:
        if path == "embed_tokens/embedding":
            return embedding
        if path == "lm_head/weight":
            likely = (math.log(config.vocab_size) + 4) / size
            return _following(own, embedding, chart.ids, chart.ids[chart.before], likely)
        return _ordinary(path, own, like, faint)

    shapes = jax.eval_shape(functools.partial(LM.init, config, dtype=dtype), key).params
    return LM(params=_filled(shapes, key, leaf, scheme), config=config)


def _head(
    config: Eagle3Config, chart: Chart, embedding: Float[Array, "v h"], key: jax.Array, scheme: Scheme | None
) -> Head3:
    layers, dtype = config.layers, embedding.dtype
    size, width, heads = layers.hidden_size, layers.head_dim, layers.num_attention_heads
    group = heads // layers.num_key_value_heads
    used = min(layers.num_key_value_heads * width, size)  # coordinates that attention can pass on

    def leaf(path: str, own: jax.Array, like: jax.ShapeDtypeStruct) -> Array:
        column, row = np.arange(like.shape[-1]), np.arange(like.shape[0])
        match path.removeprefix("layers_0/self_attn/").removesuffix("/weight"):
            case "fc":
                from_row, value = np.where(column % size < used, column % size, -1), np.full(len(column), 1 / 3)
            case "q_proj" | "k_proj":
                return _same_everywhere(own, like.shape, dtype, row % width < width // 2, _strength(layers))
            case "v_proj":
                from_row = np.where(column % size < used, column % size, -1)
                value = np.where(column < size, 1.0, -math.sqrt(used / size))
            case "o_proj":
                from_row = column // (group * width) * width + column % width
                from_row, value = np.where(from_row < used, from_row, -1), np.full(len(column), 1 / group)
            case "lm_head":
                right = math.log(config.draft_vocab_size) + SURE  # the right guess's logit; the others' are about 0
                return _guesses(embedding, _rows(chart), right / math.sqrt(used * size))
            case _:
                return _ordinary(path, own, like, CHANGE / 2)
        return _passed(own, like.shape, dtype, from_row, value)

    shapes = jax.eval_shape(functools.partial(Head3.init, config, dtype=dtype), key).params
    params = _filled(shapes, key, leaf, scheme)
    whole = config.draft_vocab_size == layers.vocab_size
    return Head3(params=params, config=config, vocabulary=None if whole else jnp.asarray(chart.ids, jnp.int32))


def _filled(
    shapes: Mapping[str, Any], key: jax.Array, leaf: Callable[..., Array], scheme: Scheme | None, above: str = ""
) -> dict[str, Any]:
    """Parameters one by one, each quantized before the next is made; `leaf(path, key of its own, shape)` makes one."""
    params: dict[str, Any] = {}
    for name, like in shapes.items():
        path = f"{above}{name}"
        if isinstance(like, Mapping):
            params[name] = _filled(like, key, leaf, scheme, f"{path}/")
            continue
        made = leaf(path, jax.random.fold_in(key, zlib.crc32(path.encode())), like)
        quant_type = None if scheme is None else scheme.of(path)
        params[name] = made if quant_type is None else quantize(made, quant_type, like.dtype)
    return params


def _strength(layers: LlamaConfig) -> float:
    """Of each rotary pair of queries and keys, so that the scores of neighbours are `GAP` apart."""
    width = layers.head_dim
    angles = layers.rope.theta ** (-2 * np.arange(width // 2) / width)
    return math.sqrt(GAP * math.sqrt(width) / (1 - np.cos(angles)).sum())


def _rows(chart: Chart) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each row of the head's output matrix: two tokens (target ids) whose embeddings it is made of, and how much of
    each. The second is the next one that the head is to be mistaken about in the same way.
    """
    size = len(chart.after)
    share, other, of_other = np.ones(size), np.arange(size), np.zeros(size)
    other[chart.wrong], other[chart.second] = np.roll(chart.wrong, -1), np.roll(chart.second, -1)
    share[chart.wrong], of_other[chart.wrong] = 0, 1
    of_other[chart.second] = 1 + FIRST / (math.log(size) + SURE)
    before = chart.before
    return [(chart.ids[before], share[before]), (chart.ids[other[before]], of_other[before])]


def _ordinary(path: str, key: jax.Array, like: jax.ShapeDtypeStruct, faint: float) -> Array:
    """A norm, or a random matrix that keeps the size of what it reads; those that add to the residual are faint."""
    if path.endswith("/scale"):
        return jnp.ones(like.shape, like.dtype)
    adds = path.endswith(("o_proj/weight", "down_proj/weight"))
    return _normal(key, like.shape, like.dtype, (faint if adds else 1.0) / math.sqrt(like.shape[-1]))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike, std: Float[Array, ""] | float) -> Array:
    return jax.random.normal(key, shape, dtype) * jnp.asarray(std, dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _signs(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "v h"]:
    """Random signs, but 1 in the first column."""
    odd = (jax.random.bits(key, shape, jnp.uint8) & 1).astype(bool).at[:, 0].set(True)
    return jnp.where(odd, 1, -1).astype(dtype)


@jax.jit
def _following(
    key: jax.Array, embedding: Float[Array, "v h"], ids: Int[Array, "d"], sources: Int[Array, "d"], scale: Array
) -> Float[Array, "v h"]:
    """An output matrix whose rows `ids` are the embeddings of `sources`; the others are nobody's."""
    rows = _signs(key, embedding.shape, embedding.dtype).at[ids].set(embedding[sources])
    return rows * jnp.asarray(scale, embedding.dtype)


@jax.jit
def _guesses(
    embedding: Float[Array, "v h"], parts: list[tuple[Int[Array, "d"], Float[Array, "d"]]], scale: Array
) -> Float[Array, "d h"]:
    """The head's output matrix."""
    return sum(embedding[token] * jnp.asarray(much * scale, embedding.dtype)[:, None] for token, much in parts)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _passed(
    key: jax.Array, shape: tuple[int, int], dtype: DTypeLike, from_row: Int[Array, "i"], value: Float[Array, "i"]
) -> Float[Array, "o i"]:
    """A matrix that passes input i on to output `from_row[i]` (-1: to none), `value[i]` times, and some noise."""
    here = jnp.arange(shape[0], dtype=jnp.int32)[:, None] == jnp.asarray(from_row, jnp.int32)[None]
    passed = jnp.where(here, jnp.asarray(value, dtype)[None], jnp.zeros((), dtype))
    return passed + _normal(key, shape, dtype, NOISE / math.sqrt(shape[1]))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _same_everywhere(
    key: jax.Array, shape: tuple[int, int], dtype: DTypeLike, rows: Array, strength: Float[Array, ""]
) -> Float[Array, "o i"]:
    """Queries or keys that are the same in every slot: `strength` in `rows`, from the coordinate that is always 1."""
    noise = _normal(key, shape, dtype, NOISE / math.sqrt(shape[1]))
    return noise.at[:, 0].set(jnp.where(rows, jnp.asarray(strength, dtype), jnp.zeros((), dtype)))
