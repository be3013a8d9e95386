"""Text or ids in, text and statistics out; the one room that the command line and the benchmarks see."""

from eagle_jax.api.generate import generate, stream
from eagle_jax.api.model import Model, load
from eagle_jax.api.regenerate import Regenerated, regenerate
from eagle_jax.api.results import Chunk, Result, Stats
from eagle_jax.api.training import read_config, train
from eagle_jax.converters import PAIRS, convert, describe
from eagle_jax.training import events

__all__ = [
    "PAIRS",
    "Chunk",
    "Model",
    "Regenerated",
    "Result",
    "Stats",
    "convert",
    "describe",
    "events",
    "generate",
    "load",
    "read_config",
    "regenerate",
    "stream",
    "train",
]
