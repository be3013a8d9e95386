"""Two tiny models behind one server: one whose answers are known, one that talks at random."""

from collections.abc import Iterator

import openai
import pytest
from served import KEY, Served
from speller import DYNAMIC, RANDOM, SPELLER

from eagle_jax.api import Engine
from eagle_jax.serving import Limits

ROOM = dict(rows=2, max_tokens=48, steps=2, max_queue=8, **DYNAMIC)


@pytest.fixture(scope="session")
def engines() -> Iterator[dict[str, Engine]]:
    engines = {"speller": Engine(SPELLER, **ROOM), "random": Engine(RANDOM, **ROOM)}
    yield engines
    for engine in engines.values():
        engine.close(drain=False)


@pytest.fixture(scope="module")
def served(engines) -> Iterator[Served]:
    limits = Limits(body_bytes=100_000, head_seconds=1.0, body_seconds=1.0, answer_seconds=60.0)
    served = Served(engines, api_key=KEY, limits=limits)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def client(served) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client
