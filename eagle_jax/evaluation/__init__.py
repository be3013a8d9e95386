"""Question files in, speed and acceptance out: plain decoding beside a drafter, on the same requests, in one run."""

from eagle_jax.evaluation.acceptance import Acceptance, measure_acceptance
from eagle_jax.evaluation.comparison import Answer, Comparison, Record, compare
from eagle_jax.evaluation.questions import Question, read_questions
from eagle_jax.evaluation.summary import Summary, summarize

__all__ = [
    "Acceptance",
    "Answer",
    "Comparison",
    "Question",
    "Record",
    "Summary",
    "compare",
    "measure_acceptance",
    "read_questions",
    "summarize",
]
