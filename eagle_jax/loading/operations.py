"""Measures which implementation of each operation is fastest: on a device's first load, and by `eagle-jax tune --ops`.

On an x86 CPU nothing is measured while a model is loaded: the machine code backend has been the fastest there, and
measuring would add half a minute to a load of a few seconds (SmolLM2). `eagle-jax tune --ops` measures there too, and
later loads use its findings.
"""

import os
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax import ops
from eagle_jax.loading.model import Model
from eagle_jax.models.lm import LM, causal
from eagle_jax.ops.choice import measure as choice
from eagle_jax.ops.choice.findings import Finding
from eagle_jax.ops.choice.recorded import Call, recording
from eagle_jax.ops.dispatch import DEFAULTS

VARIABLE = "EAGLE_JAX_MEASURE"
SECONDS = 30.0  # maximum time of measuring on the first load on a device
MAX_SLOTS = 4096  # maximum number of cache positions
TOP_K = 10


def calls_of(target: LM, context: int) -> list[Call]:
    """Returns the calls that decoding makes: one token and a tree of one request, a token of several requests."""
    on_cpu = jax.default_backend() == "cpu"
    slots = min(context, MAX_SLOTS // 4 if on_cpu else MAX_SLOTS) // 128 * 128 or context
    with recording() as calls:
        for requests, nodes in ((1, 1), (1, 8 if on_cpu else 60), (8, 1)):
            jax.eval_shape(lambda target, n=nodes, b=requests: _forward(target, b, n, slots), target)
    return calls


def _forward(target: LM, requests: int, nodes: int, slots: int) -> Any:
    steps, visible = causal(requests, nodes)
    cache = target.empty_cache(requests, slots)
    output = target.forward(jnp.zeros((requests, nodes), jnp.int32), steps + slots // 2, visible, cache)
    logits = target.logits(output.hidden)
    return ops.argmax(logits), ops.top_k(logits, min(TOP_K, logits.shape[-1]), logit_scale=1.0)


def measure_operations(model: Model, **options: Any) -> list[Finding]:
    """Measures every candidate for the model's operations; `options` are those of `ops.choice.measure.measure`.

    Raises:
        ValueError: the model is sharded or its target is not an `LM`, or another process is measuring.
    """
    if model.sharding is not None or not isinstance(model.target, LM):
        raise ValueError("operations are measured for targets of this package on one device; load one without a mesh")
    return choice.measure(calls_of(model.target, model.context), **options)


def measure_at_load(target: LM, context: int) -> None:
    """Measures operations without findings, for at most half a minute, and reports it on stderr.

    Does nothing on devices with a default backend.

    Raises:
        RuntimeError: the device does not respond any more.
        ValueError: EAGLE_JAX_MEASURE is neither "auto" nor "off".
    """
    setting = os.environ.get(VARIABLE, "auto")
    if setting not in ("auto", "off"):
        raise ValueError(f'{VARIABLE}={setting!r} is not known; expected "auto" or "off"')
    if setting == "off" or jax.default_backend() in DEFAULTS or os.environ.get(ops.VARIABLE):
        return
    try:
        if not choice.missing(calls_of(target, context)):
            return
        start = time.monotonic()
        print(f"eagle-jax: measuring operations on this device, once, {SECONDS:.0f} s at most", file=sys.stderr)
        choice.measure(calls_of(target, context), seconds=SECONDS, progress=_show)
        seconds = time.monotonic() - start
        print(f"\reagle-jax: measured in {seconds:.0f} s; eagle-jax inspect --ops shows it\033[K", file=sys.stderr)
    except (OSError, ValueError) as error:  # a folder that cannot be written, or another process that measures
        print(f"eagle-jax: operations are not measured: {error}", file=sys.stderr)


def _show(done: int, total: int, name: str) -> None:
    print(f"\r{done} of {total}: {name[:70]}\033[K", end="", file=sys.stderr, flush=True)
