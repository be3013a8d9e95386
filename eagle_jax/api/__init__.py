"""Text or ids in, text and statistics out; the one room that the command line and the benchmarks see."""

from eagle_jax.api.generate import generate, stream
from eagle_jax.api.model import Model, load
from eagle_jax.api.results import Chunk, Result, Stats
from eagle_jax.converters import describe

__all__ = ["Chunk", "Model", "Result", "Stats", "describe", "generate", "load", "stream"]
