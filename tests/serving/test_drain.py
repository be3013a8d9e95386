"""The command in a process of its own: it says where it is, answers, and on SIGTERM finishes what it has begun."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import openai
import pytest

import eagle_jax
from eagle_jax.converters import save_target
from eagle_jax.testing import TINY, synthetic_pair

TOKENIZER = pathlib.Path(eagle_jax.__file__).parent / "pair" / "target"
CONTEXT = 2048


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("target")
    config = dataclasses.replace(TINY, vocab_size=2048, num_hidden_layers=1, max_position_embeddings=CONTEXT)
    save_target(synthetic_pair(config)[0], folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOKENIZER / name, folder)
    return folder


def ask_for_endless_form(client: openai.OpenAI, how: dict, answers: list[tuple[int, float]]) -> None:
    try:
        client.completions.create(**how | {"max_tokens": 1}, extra_body={"guided_regex": "(a|b)*a(a|b){40}"})
        answers.append((200, time.monotonic()))
    except openai.APIStatusError as error:
        answers.append((error.status_code, time.monotonic()))


@pytest.mark.proof
def test_sigterm_finishes_what_is_under_way_and_refuses_what_is_new(target):
    command = [sys.executable, "-m", "eagle_jax", "serve", "--target", str(target), "--port", "0", "--slots", "2"]
    environment = {**os.environ, "EAGLE_JAX_API_KEY": "k"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said: list[str] = []
        address = ""
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                address = found[0]
                break
        assert address, said
        threading.Thread(target=lambda: said.extend(process.stderr or ())).start()
        how = dict(model=str(target), prompt="Tom has", max_tokens=CONTEXT - 50, seed=1)
        with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0, timeout=120.0) as client:
            hostile: list[tuple[int, float]] = []  # forms that nobody can make: how they are answered, and when
            askers = [threading.Thread(target=ask_for_endless_form, args=(client, how, hostile)) for _ in range(3)]
            for asker in askers:
                asker.start()
            time.sleep(0.5)
            stream = client.completions.create(**how, stream=True, stream_options={"include_usage": True})
            chunks = [next(stream)]
            process.send_signal(signal.SIGTERM)
            told = time.monotonic()
            refused = None
            while refused is None:
                try:
                    client.completions.create(**how | {"max_tokens": 1})
                except openai.InternalServerError as error:
                    refused = error
            chunks += stream
            for asker in askers:
                asker.join()
        assert {status for status, _ in hostile} <= {429, 503} and max(when for _, when in hostile) < told + 5, hostile
        assert (refused.status_code, refused.code) == (503, "unavailable") and refused.response.headers["retry-after"]
        assert chunks[-1].usage.completion_tokens > 100
        assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] in ("length", "stop")
        assert process.wait(60) == 0
    assert any("Serving" in line and "no drafting" in line for line in said), said
    assert not any("Traceback" in line for line in said), said
    assert json.dumps(said).count("--api-key") == 0
