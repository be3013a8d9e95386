"""An answer that ends where the model's logits are NaN says so in every form of responses."""

import dataclasses

import jax.numpy as jnp
from speller import DYNAMIC, SCRIPT, SPELLED, SPELLER
from starlette.testclient import TestClient

from eagle_jax.api import Engine
from eagle_jax.models.lm import LM
from eagle_jax.serving import create_app

MESSAGES = [{"role": "user", "content": "?"}]
ASKS = {"temperature": 0, "model": "m"}


def test_every_form_says_that_an_answer_failed():
    table = SPELLER.target.params["embed_tokens"]["embedding"].at[SCRIPT[5]].set(jnp.nan)
    target = LM(params=SPELLER.target.params | {"embed_tokens": {"embedding": table}}, config=SPELLER.target.config)
    with Engine(
        dataclasses.replace(SPELLER, target=target), rows=2, max_tokens=48, steps=2, max_queue=8, **DYNAMIC
    ) as engine:
        client = TestClient(create_app({"m": engine}))

        def ask(url: str, **fields):
            whole = client.post(url, json=ASKS | fields)
            assert whole.status_code == 200, whole.text
            return whole.json(), client.post(url, json=ASKS | fields | {"stream": True}).text

        told, events = ask("/v1/chat/completions", messages=MESSAGES)
        assert told["choices"][0]["finish_reason"] == "error" and '"finish_reason":"error"' in events
        said = told["choices"][0]["message"]["content"]
        assert said and SPELLED.startswith(said)
        told, events = ask("/v1/completions", prompt="a")
        assert told["choices"][0]["finish_reason"] == "error" and '"finish_reason":"error"' in events
        told, events = ask("/v1/messages", messages=MESSAGES, max_tokens=20)
        assert (told["stop_reason"], told["content"][0]["text"]) == ("error", said)
        assert '"stop_reason":"error"' in events and "event: message_stop" in events
        told, events = ask("/v1/responses", input="?")
        assert (told["status"], told["error"]["code"]) == ("failed", "server_error")
        assert (told["output"][0]["status"], told["output"][0]["content"][0]["text"]) == ("incomplete", said)
        assert "event: response.failed" in events
