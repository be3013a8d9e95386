"""The choice by measurement, with candidates that are fast and wrong, that raise, hang, and end the process."""

import json
import subprocess
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax import ops
from eagle_jax.ops import dispatch
from eagle_jax.ops.choice import findings, trial
from eagle_jax.ops.choice.measure import NO_TIME, measure, missing
from eagle_jax.ops.choice.recorded import recording
from eagle_jax.ops.rms_norm import reference

NORM = ops.Norm(jnp.full(8, 2.0), 1e-6)


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """Findings of this test alone, and no candidate but those that it adds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(findings, "_table", None)
    monkeypatch.setattr(dispatch, "BACKENDS", {})
    monkeypatch.setattr(dispatch, "DEFAULTS", {})
    dispatch._module.cache_clear()
    yield
    dispatch._module.cache_clear()


def offer(monkeypatch, **candidates):
    """Adds candidates for `rms_norm`, by name."""
    for name, function in candidates.items():
        monkeypatch.setitem(sys.modules, f"candidate_{name}", types.SimpleNamespace(rms_norm=function))
        monkeypatch.setitem(dispatch.BACKENDS, name, f"candidate_{name}")
    monkeypatch.setattr("eagle_jax.ops.choice.measure.available_candidates", lambda _: ["xla", *candidates])


def calls(rows: int = 3):
    with recording() as found:
        jax.eval_shape(lambda x: ops.rms_norm(x, NORM), jnp.zeros((rows, 8)))
    return found


def slow(x, scale, *, eps):
    """Right, after many norms whose result is all but left out."""
    more = jax.lax.fori_loop(0, 20_000, lambda _, y: jnp.sin(y) + x, x)
    return reference(x, scale, eps=eps) + 1e-30 * more


def wrong(x, scale, *, eps):
    return x


def raising(x, scale, *, eps):
    raise RuntimeError("no such\ninstruction")


def refusing(x, scale, *, eps):
    raise NotImplementedError("rows are odd")


def reason(found, name):
    return next(one.reason for one in found if one.candidate == name)


def test_the_fastest_right_one_is_taken_and_the_others_say_why(monkeypatch):
    offer(monkeypatch, slow=slow, wrong=wrong, raising=raising, refusing=refusing)
    found = measure(calls())
    assert reason(found, "xla") == reason(found, "slow") == ""
    assert reason(found, "wrong").startswith("it is wrong: off by") and "allowed 0.0001" in reason(found, "wrong")
    assert reason(found, "raising") == "it fails: RuntimeError: no such instruction"
    assert reason(found, "refusing") == "it does not compute this: rows are odd"
    assert list(findings.table().values()) == ["xla"], "a wrong one is fast, and not taken"
    assert dispatch.candidates("rms_norm", found[0].shape) == []


@pytest.mark.proof
def test_one_that_hangs_is_given_up(monkeypatch):
    ended = threading.Event()

    def hanging(x, scale, *, eps):
        ended.wait()
        return x

    monkeypatch.setattr(trial, "LIMIT", 5.0)
    offer(monkeypatch, hanging=hanging)
    found = measure(calls())
    ended.set()
    assert reason(found, "hanging").startswith("it hangs: no answer within")
    assert findings.read()[-1].reason == reason(found, "hanging") and not missing(calls())


@pytest.mark.proof
def test_a_device_that_hangs_with_it_is_told(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(trial, "LIMIT", 5.0)
    monkeypatch.setattr(trial, "RESPONSE_LIMIT", 0.1)
    monkeypatch.setattr(trial, "_add_two_numbers", ended.wait)
    offer(monkeypatch, hanging=lambda x, scale, *, eps: ended.wait() and x)
    with pytest.raises(RuntimeError, match="hanging hangs in rms_norm .* which will not try it again"):
        measure(calls())
    ended.set()
    assert not missing(calls()), "the next start does not try it"


def test_one_that_ends_the_process_is_refused_at_the_next_start(monkeypatch, tmp_path):
    code = """
import os, sys, types, jax, jax.numpy as jnp
from eagle_jax import ops
from eagle_jax.ops import dispatch
from eagle_jax.ops.choice import measure
from eagle_jax.ops.choice.recorded import recording
from eagle_jax.ops.rms_norm import reference
dispatch.BACKENDS = {"deadly": "candidate_deadly"}
sys.modules["candidate_deadly"] = types.SimpleNamespace(rms_norm=lambda *a, **k: os._exit(9))
measure.available_candidates = lambda _: ["xla", "deadly"]
with recording() as found:
    jax.eval_shape(lambda x: ops.rms_norm(x, ops.Norm(jnp.full(8, 2.0), 1e-6)), jnp.zeros((3, 8)))
measure.measure(found)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 9, ended.stderr
    offer(monkeypatch, deadly=lambda *args, **fixed: pytest.fail("it is tried again"))
    assert reason(findings.read(), "deadly") == findings.ENDED and not missing(calls())
    assert measure(calls()) == [] and list(findings.table().values()) == ["xla"]


def test_what_is_on_disk_is_used_without_measuring(monkeypatch):
    offer(monkeypatch, wrong=wrong)
    call, here = calls()[0], findings.device()
    one = dict(device=here, operation="rms_norm", shape=call.shape)
    findings.save([findings.Finding(**one, candidate=name, seconds=(time_,), error=0.0)
                   for name, time_ in (("xla", 2.0), ("wrong", 1.0))])  # fmt: skip
    assert not missing(calls()) and measure(calls()) == []
    x = jnp.arange(8.0).reshape(1, 8)
    np.testing.assert_array_equal(ops.rms_norm(x, NORM), x)
    monkeypatch.setenv(ops.VARIABLE, "xla")
    assert not np.array_equal(ops.rms_norm(x, NORM), x), "the variable overrules"


def test_findings_of_another_device_or_version_count_for_nothing(monkeypatch):
    offer(monkeypatch, wrong=wrong)
    one = dict(operation="rms_norm", shape=calls()[0].shape, candidate="wrong", seconds=(1.0,), error=0.0)
    findings.save([findings.Finding(device="gpu Z9, jax 0.1", **one)])
    assert not findings.table() and missing(calls())


def test_a_choice_stays_for_the_process_and_programs_are_traced_by_it(monkeypatch):
    before, here = ops.tracing_context(), findings.device()
    one = dict(device=here, operation="rms_norm", shape="9 of float32", error=0.0)
    findings.save([findings.Finding(**one, candidate="slow", seconds=(2.0,))])
    findings.refresh()
    assert findings.table() == {("rms_norm", "9 of float32"): "slow"} and ops.tracing_context() != before
    findings.save([findings.Finding(**one, candidate="xla", seconds=(1.0,))])
    findings.refresh()
    assert findings.table() == {("rms_norm", "9 of float32"): "slow"}
    findings.refresh(anew=True)
    assert findings.table() == {("rms_norm", "9 of float32"): "xla"}


def test_when_the_time_is_up_the_rest_is_left_for_good(monkeypatch):
    offer(monkeypatch, wrong=wrong)
    found = measure(calls(), seconds=-1.0)
    assert [one.reason for one in found] == [NO_TIME] * 2 and not findings.table() and not missing(calls())


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 0}', '{"version": 1, "findings": [3, {"device": 1}]}'])
def test_a_damaged_file_holds_nothing(content):
    findings.path().parent.mkdir(parents=True)
    findings.path().write_text(content)
    assert findings.read() == []
    findings.save([findings.Finding(device="a", operation="b", shape="c", candidate="d")])
    assert len(json.loads(findings.path().read_text())["findings"]) == 1
