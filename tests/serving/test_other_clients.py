"""The first examples of libraries that people use, unchanged but for the address."""

import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from served import KEY, Served
from speller import DYNAMIC, SPELLED, SPELLER, asked

from eagle_jax.api import Engine, generate
from eagle_jax.serving import Limits

pytestmark = pytest.mark.proof
LIBRARIES = pathlib.Path(__file__).parents[2] / "build" / "clients"  # `make build/clients`
BEGIN = """
import pydantic

class Light(pydantic.BaseModel):
    "What a lamp does."
    on: bool
"""
# with room for the schema, which some put into the prompt as well
CONFIG = dataclasses.replace(SPELLER.target.config, max_position_embeddings=600)
LONG = dataclasses.replace(SPELLER, target=dataclasses.replace(SPELLER.target, config=CONFIG), context=600)
SCHEMA = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not LIBRARIES.exists():
        pytest.skip("the clients are not installed: make build/clients")
    engine = Engine(LONG, rows=2, max_tokens=600, **DYNAMIC)
    served = Served({"speller": engine}, api_key=KEY, limits=Limits())
    yield f"{served.url}/v1"
    served.stop()
    engine.close(drain=False)


def run(script: str, address: str) -> list[str]:
    """What a script prints, with the libraries alone."""
    environment = os.environ | {"PYTHONPATH": str(LIBRARIES), "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": address}
    command = [sys.executable, "-c", BEGIN + script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def light() -> str:
    return generate(LONG, asked("?"), json_schema=SCHEMA, max_new_tokens=40, **DYNAMIC).text


def test_langchain(address: str):
    script = """
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="speller", temperature=0)
print(ascii(model.invoke("?").content))
print(ascii("".join(chunk.content for chunk in model.stream("?"))))
print(model.with_structured_output(Light, method="json_schema").invoke("?").on)
"""
    said = run(script, address)
    assert said == [ascii(SPELLED), ascii(SPELLED), str("true" in light())]


def test_instructor(address: str):
    script = """
import instructor, openai

client = instructor.from_openai(openai.OpenAI(), mode=instructor.Mode.JSON_SCHEMA)
messages = [{"role": "user", "content": "?"}]
print(client.chat.completions.create(model="speller", response_model=Light, messages=messages, temperature=0).on)
"""
    assert run(script, address) == [str("true" in light())]
