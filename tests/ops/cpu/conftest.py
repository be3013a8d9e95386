"""The machine code is tested on every CPU, on ARM too, where it computes nothing unless it was measured to win."""

import pytest


@pytest.fixture(autouse=True)
def used_by_default(monkeypatch):
    from eagle_jax.ops import dispatch  # not above: the type checker is installed after this file is read

    monkeypatch.setitem(dispatch.DEFAULTS, "cpu", "cpu")
