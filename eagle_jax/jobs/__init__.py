"""Batch jobs: files of prompts in, one file of answers out.

    questions.jsonl --lines--> rows --to_request--> offline.run --journal--> answers.jsonl.part-00000-of-00002
                                                                           answers.jsonl.part-00001-of-00002
                                                                             --merge--> answers.jsonl

The manifest, `answers.jsonl.job.json`, records the settings that all answers depend on.
"""

from eagle_jax.jobs.engine_rows import answer_lines
from eagle_jax.jobs.job import Job, Tally, merge
from eagle_jax.jobs.lines import Line
from eagle_jax.jobs.manifest import fingerprints
from eagle_jax.jobs.rows import Defaults

__all__ = ["Defaults", "Job", "Line", "Tally", "answer_lines", "fingerprints", "merge"]
