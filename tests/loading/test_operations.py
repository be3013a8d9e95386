"""Operations are measured as a model is loaded, but not where a backend computes them by default."""

import jax
import pytest

from eagle_jax.loading import operations
from eagle_jax.models.lm import LM
from eagle_jax.ops import dispatch
from eagle_jax.testing import TINY


@pytest.mark.parametrize("default, measured", [("cpu", 0), (None, 1)], ids=["x86", "ARM"])
def test_on_cpus_it_is_measured_where_machine_code_is_no_default(default, measured, monkeypatch):
    asked: list[object] = []
    monkeypatch.setenv(operations.VARIABLE, "auto")
    monkeypatch.delitem(dispatch.DEFAULTS, "cpu", raising=False)
    if default is not None:
        monkeypatch.setitem(dispatch.DEFAULTS, "cpu", default)
    monkeypatch.setattr(operations.choice, "missing", lambda calls: asked.append(calls))
    operations.measure_at_load(LM.init(TINY, jax.random.key(0)), context=256)
    assert len(asked) == measured
