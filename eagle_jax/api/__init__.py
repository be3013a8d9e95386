"""Text or ids in, text and statistics out; the one room that the command line and the benchmarks see."""

from eagle_jax.api.budgets import keep as keep_budgets
from eagle_jax.api.budgets import path as budgets_path
from eagle_jax.api.datastore import make_datastore
from eagle_jax.api.drafters import NAMES as DRAFTERS
from eagle_jax.api.engine import Engine, EngineClosed, Load, QueueFull
from eagle_jax.api.generate import generate, stream
from eagle_jax.api.jobs import Defaults, Job, Tally, fingerprints, merge
from eagle_jax.api.model import Model, at_hand, download, dtype_name, load, tokenizer_of, with_head
from eagle_jax.api.profiling import Profile, profile
from eagle_jax.api.regenerate import Regenerated, regenerate
from eagle_jax.api.results import Chunk, Result, Stats
from eagle_jax.api.ticket import CANCELLED, EngineError, Ticket, achunks, chunks
from eagle_jax.api.trace import Cycle, Parts, closest_draws, time_parts, trace, tree_shape
from eagle_jax.api.training import read_config, train
from eagle_jax.api.tuning import Tuned, tune
from eagle_jax.api.warming import Warmed, warm_up
from eagle_jax.api.weights import Weights, weights_of, with_weights
from eagle_jax.converters import PAIRS, convert, convert_gguf, describe, quantize
from eagle_jax.sharding import LOCAL, join, wait_for_others
from eagle_jax.training import events

__all__ = [
    "CANCELLED",
    "DRAFTERS",
    "LOCAL",
    "PAIRS",
    "Chunk",
    "Cycle",
    "Defaults",
    "Engine",
    "EngineClosed",
    "EngineError",
    "Job",
    "Load",
    "Model",
    "Parts",
    "Profile",
    "QueueFull",
    "Regenerated",
    "Result",
    "Stats",
    "Tally",
    "Ticket",
    "Tuned",
    "Warmed",
    "Weights",
    "achunks",
    "at_hand",
    "budgets_path",
    "chunks",
    "closest_draws",
    "convert",
    "convert_gguf",
    "describe",
    "download",
    "dtype_name",
    "events",
    "fingerprints",
    "generate",
    "join",
    "keep_budgets",
    "load",
    "make_datastore",
    "quantize",
    "merge",
    "profile",
    "read_config",
    "regenerate",
    "stream",
    "time_parts",
    "tokenizer_of",
    "trace",
    "train",
    "tree_shape",
    "tune",
    "wait_for_others",
    "warm_up",
    "weights_of",
    "with_head",
    "with_weights",
]
