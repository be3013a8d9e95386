"""Without llvmlite everything works through XLA, and one warning says so."""

import subprocess
import sys

SCRIPT = """
import logging, sys
sys.modules["llvmlite"] = None
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
import jax.numpy as jnp
from eagle_jax import ops
from eagle_jax.models import layout
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY, synthetic_pair

target, _ = synthetic_pair()
laid = LM(params=layout.for_decoding(dict(target.params), TINY.head_dim), config=TINY)
print(laid(jnp.arange(5)[None])[1].shape, any(isinstance(w, ops.PackedWeight) for w in laid.params.values()))
"""


def test_xla_takes_its_place_with_one_warning():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=True)
    assert ran.stdout.strip() == "(1, 5, 61) False"
    warnings = [line for line in ran.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1 and "are left to XLA" in warnings[0] and 'pip install "eagle-jax[cpu]"' in warnings[0]
