"""The trial of one candidate for one class of calls: compared with the reference and timed, with a time limit.

Before the trial a finding is saved that says that the process ended. If the candidate hangs or kills the process, that
finding stays, and the next process does not try the candidate.
"""

import contextvars
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.ops.choice.findings import ENDED, Finding, device, save
from eagle_jax.ops.choice.recorded import Call
from eagle_jax.ops.dispatch import dispatch, forced
from eagle_jax.ops.packing import is_leaf, pack
from eagle_jax.ops.quantized import QuantArray

LIMIT = 20.0  # seconds of a trial, compiling included
RESPONSE_LIMIT = 10.0  # seconds in which a working device adds two numbers
LOOP, ROUNDS = 8, 5  # calls in one program, and runs of it; the fastest run counts
# Largest deviation, relative to the largest number. With quantized weights rows may be rounded to 8 bits.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2}
QUANTIZED_TOLERANCE = 5e-2
WEIGHT_ARGUMENT = {"linear": 1, "mlp_block": 1, "attention_block": 2}  # index of the argument with weights

T = TypeVar("T")


class Hung(Exception):
    """The call did not return in time."""


def within(seconds: float, run: Callable[[], T]) -> T:
    """Calls `run` in a thread that is abandoned after `seconds`.

    Raises:
        Hung: the call has not returned by then.
    """
    outcome: list[Any] = []

    def body() -> None:
        try:
            outcome.append((run(), None))
        except BaseException as error:  # raised in the caller's thread
            outcome.append((None, error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise Hung(f"no answer within {seconds:.0f} s")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def measure(calls: Sequence[tuple[Call, tuple[Any, ...]]], candidate: str, expected: list[Any] | None) -> Finding:
    """Checks and times a candidate on calls of one class, with their arrays; saves the finding.

    Args:
        expected: results of the reference; None if the candidate is the reference.

    Raises:
        RuntimeError: the device stopped responding.
    """
    call = calls[0][0]
    finding = Finding(device=device(), operation=call.operation, shape=call.shape, candidate=candidate, reason=ENDED)
    save([finding])
    try:
        finding = dataclasses.replace(finding, **within(LIMIT, lambda: _measured(calls, candidate, expected)))
    except Hung as error:
        finding = dataclasses.replace(finding, reason=f"it hangs: {error}")
        save([finding])
        _check_device(finding)
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        finding = dataclasses.replace(finding, reason=f"it fails: {message}")
    save([finding])
    return finding


def results(calls: Sequence[tuple[Call, tuple[Any, ...]]], candidate: str) -> list[Any]:
    """Runs a candidate on the calls; returns host arrays, or None for a call that it does not support."""
    outputs: list[Any] = []
    for call, arrays in calls:
        with forced(call.operation, candidate) as refused:
            out = jax.jit(lambda *args, call=call: _run(call, args))(*_with_packed_weights(call, arrays))
        outputs.append(None if candidate in refused else jax.tree.map(np.asarray, out))
    return outputs


def _measured(calls: Sequence[Any], candidate: str, expected: list[Any] | None) -> dict[str, Any]:
    """Returns the fields of the `Finding` that the trial determines."""
    outputs, error = results(calls, candidate), 0.0
    if all(output is None for output in outputs):
        with forced(calls[0][0].operation, candidate) as refused:
            jax.eval_shape(lambda *args: _run(calls[0][0], args), *_with_packed_weights(*calls[0]))
        return {"reason": f"it does not compute this: {refused.get(candidate, '')}"}
    if expected is not None:
        error = max(
            _error(output, reference) for output, reference in zip(outputs, expected, strict=True) if output is not None
        )
        tolerance = _tolerance(calls[0][1])
        if not error <= tolerance:
            return {
                "error": error,
                "reason": f"it is wrong: off by {error:.1e} of the largest number, allowed {tolerance:g}",
            }
    return {"error": error, "seconds": tuple(_seconds(call, arrays, candidate) for call, arrays in calls), "reason": ""}


def _run(call: Call, args: tuple[Any, ...]) -> Any:
    return dispatch(call.operation, call.reference, *args, **call.fixed)


def _with_packed_weights(call: Call, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments with weights packed by the current choices."""

    def packed(leaf: Any) -> Any:
        return pack(leaf) if leaf.ndim > 1 else leaf

    at = WEIGHT_ARGUMENT.get(call.operation)
    if at is None:
        return arrays
    return (*arrays[:at], jax.tree.map(packed, arrays[at], is_leaf=is_leaf), *arrays[at + 1 :])


def _seconds(call: Call, arrays: tuple[Any, ...], candidate: str) -> float:
    """Returns the seconds of one call, in a loop in which each call depends on the one before."""
    with forced(call.operation, candidate):
        args = _with_packed_weights(call, arrays)
        leaves, tree = jax.tree.flatten(args)

        def loop(first: jax.Array, *rest: jax.Array) -> jax.Array:
            def once(_: Any, carry: jax.Array) -> jax.Array:
                out = _run(call, jax.tree.unflatten(tree, [first + carry.astype(first.dtype), *rest]))
                sums = (jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(out))
                return carry + 1e-30 * sum(sums, jnp.zeros((), jnp.float32))

            return jax.lax.fori_loop(0, LOOP, once, jnp.zeros((), jnp.float32))

        run = jax.jit(loop).lower(*leaves).compile()
    best = float("inf")
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        jax.block_until_ready(run(*leaves))
        best = min(best, time.perf_counter() - start)
    return best / LOOP


def _error(output: Any, reference: Any) -> float:
    """Returns the largest deviation relative to the largest number; infinite if indices differ or a number is NaN."""
    worst = 0.0
    for value, other in zip(jax.tree.leaves(output), jax.tree.leaves(reference), strict=True):
        if value.shape != other.shape or value.dtype != other.dtype:
            return float("inf")
        if np.issubdtype(value.dtype, np.integer):
            if not np.array_equal(value, other):
                return float("inf")
            continue
        wide, right = np.asarray(value, np.float32), np.asarray(other, np.float32)
        off = np.max(np.abs(wide - right), initial=0.0) / max(float(np.max(np.abs(right), initial=0.0)), 1e-30)
        worst = max(worst, float(off) if np.isfinite(off) else float("inf"))
    return worst


def _tolerance(arrays: tuple[Any, ...]) -> float:
    if any(isinstance(leaf, QuantArray) for leaf in jax.tree.leaves(arrays, is_leaf=is_leaf)):
        return QUANTIZED_TOLERANCE
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(arrays)}
    return max(tolerance for dtype, tolerance in TOLERANCE.items() if dtype in dtypes)


def _check_device(finding: Finding) -> None:
    try:
        within(RESPONSE_LIMIT, _add_two_numbers)
    except Hung:
        raise RuntimeError(
            f"{finding.candidate} hangs in {finding.operation} ({finding.shape}), and the device has stopped "
            "responding; restart the program, which will not try it again"
        ) from None


def _add_two_numbers() -> jax.Array:
    return jax.block_until_ready(jnp.ones(()) + jnp.ones(()))
