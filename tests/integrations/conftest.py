"""A tiny pair in a folder, and a Ray of this machine alone in which programs that were compiled here are known."""

import dataclasses
import functools
import os
import pathlib
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator

import jax
import pytest
from small_engine import ENGINE

import eagle_jax
from eagle_jax.api import Engine, Model
from eagle_jax.converters import save_head, save_target
from eagle_jax.testing import TINY, synthetic_pair

TOKENIZER = pathlib.Path(eagle_jax.__file__).parent / "pair" / "target"


@pytest.fixture(scope="session")
def load(tmp_path_factory) -> Callable[[], Model]:
    """Makes the pair's model, in any process."""
    folder = tmp_path_factory.mktemp("pair")
    target, head = synthetic_pair(dataclasses.replace(TINY, vocab_size=2048), strength=0.6, error=0.15)
    save_target(target, folder / "target")
    save_head(head, folder / "head", target=target)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOKENIZER / name, folder / "target")
    return functools.partial(eagle_jax.load, str(folder / "target"), str(folder / "head"))


@pytest.fixture(scope="session")
def model(load) -> Model:
    return load()


@pytest.fixture(scope="session")
def started(model, tmp_path_factory) -> Iterator[None]:
    """Ray, with four processors to give away, however many there are."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: make ray")
    with Engine(model, **ENGINE):
        pass
    # Processes that are killed must not leave half a program where later runs look for whole ones.
    programs = tmp_path_factory.mktemp("ray") / "programs"
    shutil.copytree(jax.config.jax_compilation_cache_dir, programs, copy_function=os.link)
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        "JAX_NUM_CPU_DEVICES": "4",
    }
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or Ray keeps one in the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": environment}, logging_level="warning")
        yield
        ray.shutdown()
