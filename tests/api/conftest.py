"""The api as users import it."""

import importlib
import sys
from types import ModuleType

import pytest

import eagle_jax


@pytest.fixture(scope="session")
def api() -> ModuleType:
    """`eagle_jax.api` without the type checker of the test run, which would speak before our own sentences do.

    The modules are imported once more; the rooms below and the compiled programs are the same.
    """
    again = [name for name in sys.modules if name.startswith("eagle_jax.api") and not name.endswith(".programs")]
    finders = [finder for finder in sys.meta_path if type(finder).__module__.startswith("jaxtyping")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eagle_jax, "api", eagle_jax.api)  # the import below replaces it; undone, it is the checked one
        patch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder not in finders])
        for name in again:
            patch.delitem(sys.modules, name)
        fresh = importlib.import_module("eagle_jax.api")
        for name in [name for name in sys.modules if name in again]:
            patch.delitem(sys.modules, name)  # undone in reverse order: the checked ones come back
    assert sys.modules["eagle_jax.api"] is not fresh
    return fresh
