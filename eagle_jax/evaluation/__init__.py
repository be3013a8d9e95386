"""Evaluation of speed and acceptance: several methods on the same questions, in one run."""

from eagle_jax.evaluation.acceptance import Acceptance, measure_acceptance
from eagle_jax.evaluation.answers import Answer, Conversation
from eagle_jax.evaluation.comparison import EAGLE, PLAIN, Method, compare, too_long
from eagle_jax.evaluation.metrics import OVERALL, Figures, by_group, divergence, figures
from eagle_jax.evaluation.prompts import Prompter
from eagle_jax.evaluation.questions import Question, read_questions

__all__ = [
    "EAGLE",
    "OVERALL",
    "PLAIN",
    "Acceptance",
    "Answer",
    "Conversation",
    "Figures",
    "Method",
    "Prompter",
    "Question",
    "by_group",
    "compare",
    "divergence",
    "figures",
    "measure_acceptance",
    "read_questions",
    "too_long",
]
