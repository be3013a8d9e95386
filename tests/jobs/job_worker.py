"""A batch job in a process of its own: `python job_worker.py IN.jsonl OUT.jsonl`."""

import sys

from eagle_jax.api import Defaults, Job, Model
from eagle_jax.testing import TINY, synthetic_pair

if __name__ == "__main__":
    questions, output = sys.argv[1:]
    model = Model(*synthetic_pair(TINY, strength=0.6, error=0.15), tokenizer=None, stop_ids=(), context=128)
    defaults = Defaults(temperature=1.0, top_p=0.95)
    with Job([questions], output, defaults=defaults, token_ids=True) as job:
        job.run(model, tree=(8, 2, 2), batch_size=8)
        assert job.merge() == []
