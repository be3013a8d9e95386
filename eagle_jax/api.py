"""The public names: all that the command line, the server and the evaluation import."""

from eagle_jax.chat.chat_answer import ChatAnswer
from eagle_jax.chat.prompts import Chat, Text, TooLong, encode
from eagle_jax.chat.reasoning import NAMES as REASONING_FORMATS
from eagle_jax.chat.reasoning import ReasoningFormat, reasoning_format_for
from eagle_jax.chat.tool_formats import FORMATS, ToolFormat, tool_format_for
from eagle_jax.chat.tools import Tools, call_options, call_schema, read_tools
from eagle_jax.converters import PAIRS, convert, convert_gguf, quantize
from eagle_jax.inspection.plan import Plan, plan
from eagle_jax.inspection.profile import Profile, profile
from eagle_jax.inspection.trace import Parts, closest_draws, time_parts, trace, tree_shape
from eagle_jax.jobs import Defaults, Job, Line, Tally, answer_lines, fingerprints, merge
from eagle_jax.jobs.regenerate import Regenerated, regenerate
from eagle_jax.jobs.training import first_turns, read_config, train
from eagle_jax.loading.datastore import make_datastore
from eagle_jax.loading.dtypes import dtype_name
from eagle_jax.loading.folders import at_hand, default_target, describe, download, gguf_of, tokenizer_of
from eagle_jax.loading.load_model import load, with_head
from eagle_jax.loading.model import Model
from eagle_jax.loading.operations import measure_operations
from eagle_jax.loading.weights import Weights, weights_of, with_weights
from eagle_jax.methods.budgets import numbers_of
from eagle_jax.methods.budgets import path as budgets_path
from eagle_jax.methods.budgets import save as keep_budgets
from eagle_jax.methods.registry import METHODS, method_of
from eagle_jax.methods.registry import NAMES as DRAFTERS
from eagle_jax.ops.choice.findings import Finding, fastest
from eagle_jax.ops.choice.findings import read as operation_findings
from eagle_jax.ops.dispatch import environment_settings as operation_settings
from eagle_jax.protocols.structured import schema_of_response_format
from eagle_jax.requests.processing import Processing, check_processing
from eagle_jax.requests.results import (
    CANCELLED,
    BudgetUse,
    Chunk,
    PromptLogprobs,
    Result,
    Stats,
    Step,
    sum_spent,
    without_nan,
)
from eagle_jax.requests.ticket import EngineClosed, EngineError, QueueFull, Ticket, achunks, chunks
from eagle_jax.scheduling.engine import Engine
from eagle_jax.scheduling.engine_load import Load
from eagle_jax.scheduling.generate import generate, stream
from eagle_jax.scheduling.prefix_cache import PREFIX_CACHE_BYTES
from eagle_jax.scheduling.scoring import prompt_logprobs
from eagle_jax.scheduling.warming import Warmed, warm_up
from eagle_jax.sharding import LOCAL, join, wait_for_others
from eagle_jax.structured.checks import ANY_OBJECT, FORMS, schema_at
from eagle_jax.text.detokenize import INCOMPLETE, IncrementalDetokenizer, decode, settled
from eagle_jax.training import events
from eagle_jax.tuning.calibrate import calibrate, calibrate_head
from eagle_jax.tuning.tune import Tuned, tune

__all__ = [
    "ANY_OBJECT",
    "CANCELLED",
    "DRAFTERS",
    "FORMATS",
    "FORMS",
    "INCOMPLETE",
    "LOCAL",
    "METHODS",
    "PAIRS",
    "PREFIX_CACHE_BYTES",
    "REASONING_FORMATS",
    "Chat",
    "ChatAnswer",
    "Chunk",
    "Step",
    "Defaults",
    "Engine",
    "EngineClosed",
    "EngineError",
    "Finding",
    "IncrementalDetokenizer",
    "Job",
    "Line",
    "Load",
    "Model",
    "Parts",
    "Plan",
    "Processing",
    "Profile",
    "PromptLogprobs",
    "QueueFull",
    "ReasoningFormat",
    "Regenerated",
    "Result",
    "BudgetUse",
    "Stats",
    "Tally",
    "Text",
    "Ticket",
    "TooLong",
    "ToolFormat",
    "Tools",
    "Tuned",
    "Warmed",
    "Weights",
    "achunks",
    "answer_lines",
    "at_hand",
    "default_target",
    "calibrate",
    "calibrate_head",
    "call_options",
    "call_schema",
    "check_processing",
    "budgets_path",
    "chunks",
    "closest_draws",
    "convert",
    "convert_gguf",
    "decode",
    "describe",
    "download",
    "dtype_name",
    "encode",
    "events",
    "fastest",
    "fingerprints",
    "gguf_of",
    "operation_findings",
    "operation_settings",
    "first_turns",
    "generate",
    "join",
    "keep_budgets",
    "load",
    "make_datastore",
    "merge",
    "measure_operations",
    "method_of",
    "numbers_of",
    "plan",
    "profile",
    "prompt_logprobs",
    "quantize",
    "read_config",
    "read_tools",
    "reasoning_format_for",
    "regenerate",
    "schema_at",
    "schema_of_response_format",
    "settled",
    "stream",
    "sum_spent",
    "time_parts",
    "tokenizer_of",
    "tool_format_for",
    "trace",
    "train",
    "tree_shape",
    "tune",
    "wait_for_others",
    "warm_up",
    "weights_of",
    "with_head",
    "with_weights",
    "without_nan",
]
