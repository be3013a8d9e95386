"""What public clients send: fields that change nothing, vLLM's names, pages of other origins, and when events leave."""

import json
import time
import urllib.request

import pytest
from served import KEY, Served
from speller import DYNAMIC, RANDOM, SPELLED, SPELLER, TOKENIZER, asked

import eagle_jax
from eagle_jax.api import generate

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
# As benchmark_serving.py of vLLM, bench_serving.py of SGLang, lm-evaluation-harness and OpenAI's library send them.
NEUTRAL = {
    "vLLM's load generator": {
        "repetition_penalty": 1.0,
        "ignore_eos": False,
        "stream_options": {"include_usage": True},
    },
    "SGLang's load generator": {"ignore_eos": False, "lora_path": None, "return_hidden_states": False},
    "vLLM's fields": {
        "min_tokens": 0,
        "stop_token_ids": [],
        "bad_words": [],
        "logit_bias": {},
        "length_penalty": 1.0,
        "use_beam_search": False,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
        "prompt_logprobs": None,
        "priority": 0,
        "request_id": "a-1",
        "top_k": -1,
        "min_p": 0.0,
        "guided_json": None,
        "structured_outputs": None,
    },
    "who asks": {"user": "a", "safety_identifier": "b", "prompt_cache_key": "c", "prompt_cache_retention": "24h"},
    "many stop strings": {"stop": ["~~", "##", "@@", "%%", "&&", "!!"]},
}
NEUTRAL_CHAT = {
    "tools that must not be called": {"tools": [TOOL], "tool_choice": "none"},
    "no tools": {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    "text": {"response_format": {"type": "text"}, "modalities": ["text"], "echo": False},
    "a template": {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": True},
}


def post(served: Served, path: str, body: dict, **headers: str):
    """The response to a body that is sent as curl would, and what it says."""
    wanted = {"authorization": f"Bearer {KEY}"} | headers
    request = urllib.request.Request(f"{served.url}{path}", json.dumps(body).encode(), wanted)
    with urllib.request.urlopen(request) as response:
        return response, response.read()


@pytest.mark.parametrize("name", NEUTRAL | NEUTRAL_CHAT)
def test_what_changes_nothing_is_no_error(served: Served, name: str):
    fields = (NEUTRAL | NEUTRAL_CHAT)[name]
    fields = {key: value for key, value in fields.items() if key != "stream_options"}
    _, told = post(served, CHAT, {"messages": asked("?"), "temperature": 0} | fields)
    assert json.loads(told)["choices"][0]["message"]["content"] == SPELLED
    if name in NEUTRAL:
        _, told = post(served, COMPLETION, {"prompt": "ab", "temperature": 0, "max_tokens": 5} | fields)
        assert json.loads(told)["choices"][0]["text"] == "cdefg"


def test_a_request_brings_no_template(served: Served):
    for how in ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, {"chat_template": "{{ 1 }}"}):
        for path in (CHAT, "/tokenize"):
            with pytest.raises(urllib.error.HTTPError, match="400") as caught:
                post(served, path, {"messages": asked("?")} | how)
            assert "chat_template" in json.loads(caught.value.read())["error"]["message"]


def test_messages_as_clients_keep_them(served: Served):
    messages = [
        {"role": "user", "content": "a", "name": "Ann", "type": "text"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm", "refusal": None, "tool_calls": []},
        {"role": "user", "content": "?"},
    ]
    _, told = post(served, CHAT, {"messages": messages, "temperature": 0})
    assert json.loads(told)["choices"][0]["message"]["content"] == SPELLED


@pytest.mark.matrix
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"logit_bias": {"40": 5.0}, "min_tokens": 3, "bad_words": ["th"]},
        {"stop_token_ids": list(range(60, 68)), "temperature": 1.0, "seed": 4},
        {"allowed_token_ids": list(range(90, 100)), "temperature": 0.7, "seed": 4},
    ],
)
def test_options_that_depend_on_the_text(served: Served, options: dict):
    _, told = post(
        served, COMPLETION, {"model": "random", "prompt": [5, 6], "max_tokens": 20, "temperature": 0} | options
    )
    bias = {int(id_): value for id_, value in options.get("logit_bias", {}).items()}
    expected = generate(RANDOM, [5, 6], max_new_tokens=20, **DYNAMIC, **(options | {"logit_bias": bias}))
    assert json.loads(told)["choices"][0]["text"] == expected.text


@pytest.mark.parametrize("stream", [False, True])
def test_the_likeliest_tokens_in_the_place_of_each(served: Served, stream: bool):
    asks = {"temperature": 0, "max_tokens": 4, "logprobs": True, "top_logprobs": 3, "stream": stream}
    _, told = post(served, CHAT, {"messages": asked("?")} | asks)
    lines = [line[6:] for line in told.splitlines() if line.startswith(b"data: {")] if stream else [told]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    places = [place for choice in choices for place in (choice["logprobs"] or {"content": []})["content"]]
    assert "".join(place["token"] for place in places) == SPELLED[:4]
    for place in places:
        first, *others = place["top_logprobs"]
        assert (first["token"], first["logprob"], first["bytes"]) == (place["token"], place["logprob"], place["bytes"])
        assert len(others) == 2 and others[0]["logprob"] <= first["logprob"]

    _, told = post(served, COMPLETION, {"prompt": "ab", "temperature": 0, "max_tokens": 3, "logprobs": 2})
    logprobs = json.loads(told)["choices"][0]["logprobs"]
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert len(top) == 2 and top[token] == logprob


def test_the_first_event_leaves_with_the_first_token(served: Served, monkeypatch: pytest.MonkeyPatch):
    """Load generators take its time for that of the first token."""
    engine, held = served.engines["speller"], 0.5
    step = engine._scheduler.step
    monkeypatch.setattr(engine._scheduler, "step", lambda: (time.sleep(held), step())[1])
    for path, asks in ((CHAT, {"messages": asked("?")}), (COMPLETION, {"prompt": "ab"})):
        body = json.dumps(asks | {"stream": True, "max_tokens": 3, "n": 2}).encode()
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        start = time.perf_counter()
        with urllib.request.urlopen(urllib.request.Request(f"{served.url}{path}", body, headers)) as response:
            first = response.readline()
            waited = time.perf_counter() - start
            events = [first, *response.readlines()]
        assert waited >= held and b'"choices"' in first, waited
        pieces = [json.loads(line[6:]) for line in events if line.startswith(b"data: {")]
        if path == CHAT:
            for index in (0, 1):
                deltas = [piece["choices"][0]["delta"] for piece in pieces if piece["choices"][0]["index"] == index]
                assert deltas[0] == {"role": "assistant", "content": ""} and not any("role" in d for d in deltas[1:])


def test_tokens_of_text_and_text_of_tokens(served: Served):
    _, told = post(served, "/tokenize", {"prompt": "ab", "return_token_strs": True})
    ids = TOKENIZER("ab")["input_ids"]
    assert json.loads(told) == {"count": 2, "max_model_len": 48, "tokens": ids, "token_strs": ["a", "b"]}
    _, told = post(served, "/tokenize", {"model": "random", "messages": asked("?")})
    expected = TOKENIZER.apply_chat_template(asked("?"), add_generation_prompt=True, return_dict=True)["input_ids"]
    assert json.loads(told)["tokens"] == expected
    for tokens in (ids, expected):  # special tokens have text here
        _, told = post(served, "/detokenize", {"tokens": tokens})
        assert json.loads(told) == {"prompt": TOKENIZER.decode(tokens)}
    for path, body in (("/tokenize", {"prompt": "ab", "mood": 1}), ("/detokenize", {"tokens": [999]})):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(served, path, body)
    with urllib.request.urlopen(f"{served.url}/version") as response:
        assert json.loads(response.read()) == {"version": eagle_jax.__version__}


def test_unknown_fields_are_passed_over_where_the_server_is_told_so(engines):
    served = Served(engines, api_key=KEY, ignore_unknown=True, origins=["https://page.example"])
    try:
        message = {"role": "user", "content": "?", "mood": "good"}
        asks = {"messages": [message], "temperature": 0, "best_answer": 1, "x" * 3: None}
        for stream in (False, True):
            response, told = post(served, CHAT, asks | {"stream": stream})
            assert response.headers["x-eagle-jax-ignored"] == "messages[0].mood, best_answer"
            assert SPELLED[0] in told.decode()
        for path, body in (("/tokenize", {"prompt": "ab"}), ("/detokenize", {"tokens": [65]})):
            response, _ = post(served, path, body | {"mood": 1})
            assert response.headers["x-eagle-jax-ignored"] == "mood"
        response, _ = post(served, CHAT, {"messages": asked("?")})
        assert response.headers["x-eagle-jax-ignored"] is None
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(served, CHAT, asks | {"ebnf": "root ::= a"})
        asking = {"origin": "https://page.example", "access-control-request-method": "POST"}
        preflight = urllib.request.Request(f"{served.url}{CHAT}", headers=asking, method="OPTIONS")
        with urllib.request.urlopen(preflight) as response:
            assert response.headers["access-control-allow-origin"] == "https://page.example"
    finally:
        served.stop()


def test_a_server_that_follows_the_models_recommendation(engines):
    from eagle_jax.serving.service import Service

    served = Served(engines, api_key=KEY)
    try:
        service: Service = served.app.state.service
        model = service.engines["speller"].model
        model.generation.update({"temperature": 0.0, "max_new_tokens": 1})
        service.generation_config = True
        _, told = post(served, CHAT, {"messages": asked("?")})
        assert json.loads(told)["choices"][0]["message"]["content"] == SPELLED
    finally:
        SPELLER.generation.clear()
        served.stop()
