"""OpenAI's own client against the server: every answer is the one that `generate` gives for the seed."""

import json
import re
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest
from served import KEY, Served
from speller import DYNAMIC, RANDOM, SCRIPT, SPELLED, SPELLER, asked

from eagle_jax.api import Engine, generate
from eagle_jax.scheduling import chunked_prefill, scheduler
from eagle_jax.serving import Limits

SAMPLED = {"temperature": 0.9, "top_p": 0.99}


def alone(prompt, **options):
    return generate(RANDOM, prompt, batch_size=1, **options, **DYNAMIC)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["speller", "random"]
    assert client.models.retrieve("random").owned_by == "eagle_jax"


def test_chat(client):
    answer = client.chat.completions.create(model="speller", messages=asked("Spell!"), temperature=0)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", SPELLED, "stop")
    assert answer.object == "chat.completion" and answer.model == "speller" and answer.id.startswith("chatcmpl-")
    result = generate(SPELLER, asked("Spell!"), max_new_tokens=40, **DYNAMIC)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (result.prompt_tokens, len(result.token_ids))
    assert usage.total_tokens == result.prompt_tokens + len(result.token_ids)
    accepted = usage.completion_tokens_details.accepted_prediction_tokens
    assert accepted == len(result.token_ids) - 1 - result.stats.steps > 0


def test_chat_in_parts_and_roles(client):
    parts = [{"type": "text", "text": "Spe"}, {"type": "text", "text": "ll!"}]
    answer = client.chat.completions.create(
        model="speller", messages=[{"role": "user", "content": parts}], temperature=0, max_completion_tokens=3
    )
    assert answer.choices[0].message.content == SPELLED[:3] and answer.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="Only user and assistant may speak, not system!"):
        client.chat.completions.create(model="speller", messages=[{"role": "developer", "content": "Be brief."}])


def test_completions_of_text_and_tokens(client):
    how = dict(max_new_tokens=9, seed=3, **SAMPLED)
    prompts = [[5, 6, 7], [8]]
    answer = client.completions.create(model="random", prompt=prompts, max_tokens=9, seed=3, **SAMPLED)
    assert [choice.text for choice in answer.choices] == [alone(prompt, **how).text for prompt in prompts]
    assert answer.usage.prompt_tokens == 4 and answer.object == "text_completion"
    one = client.completions.create(model="speller", prompt="de", temperature=0)
    assert one.choices[0].text == generate(SPELLER, "de", max_new_tokens=16, **DYNAMIC).text


def test_n_answers(client):
    how = dict(seed=5, **SAMPLED)
    answer = client.completions.create(model="random", prompt=[[5], [6]], n=3, max_tokens=6, **how)
    results = generate(RANDOM, [[5], [6]], num_samples=3, max_new_tokens=6, batch_size=1, **how, **DYNAMIC)
    assert [choice.text for choice in answer.choices] == [one.text for several in results for one in several]
    assert [choice.index for choice in answer.choices] == list(range(6)) and answer.usage.prompt_tokens == 2


def test_seeds(client):
    def text(**how):
        answer = client.completions.create(model="random", prompt=[7], max_tokens=8, temperature=1.5, **how)
        return answer.choices[0].text

    assert text(seed=11) == text(seed=11)
    assert len({text() for _ in range(4)}) > 1, "without a seed every answer has its own"


def test_stop(client):
    for stop, text in (("pq", SPELLED.split("pq")[0]), (["z", "k€"], SPELLED.split("k€")[0])):
        answer = client.chat.completions.create(model="speller", messages=asked("Spell!"), temperature=0, stop=stop)
        assert answer.choices[0].message.content == text and answer.choices[0].finish_reason == "stop"


def test_what_other_servers_call_off_is_off(client):
    how = dict(model="random", prompt=[5], max_tokens=6, seed=3, **SAMPLED)
    plain = client.completions.create(**how).choices[0].text
    assert client.completions.create(**how, stop=[], extra_body={"top_k": -1}).choices[0].text == plain


def test_streams_are_the_whole_answers(client):
    how = dict(messages=asked("Spell!"), temperature=0, stream=True)
    chunks = list(client.chat.completions.create(model="speller", **how, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == SPELLED
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(SCRIPT)

    how = dict(prompt=[[5], [6]], n=2, max_tokens=9, seed=1, **SAMPLED)
    texts = [""] * 4
    for chunk in client.completions.create(model="random", stream=True, **how):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in client.completions.create(model="random", **how).choices]


def test_logprobs(client):
    result = alone([5], max_new_tokens=7, seed=2, logprobs=True, **SAMPLED)
    how = dict(model="random", prompt=[5], max_tokens=7, seed=2, logprobs=0, **SAMPLED)
    whole = client.completions.create(**how).choices[0].logprobs
    assert whole.token_logprobs == pytest.approx(result.logprobs, abs=1e-4)
    assert len(whole.tokens) == len(result.token_ids)
    pieces = [chunk.choices[0].logprobs for chunk in client.completions.create(stream=True, **how)]
    assert [number for piece in pieces if piece for number in piece.token_logprobs] == whole.token_logprobs
    assert [place for piece in pieces if piece for place in piece.text_offset] == whole.text_offset

    how = dict(model="speller", messages=asked("Spell!"), temperature=0, logprobs=True, max_tokens=4)
    content = client.chat.completions.create(**how).choices[0].logprobs.content
    assert "".join(token.token for token in content) == SPELLED[:4] and all(token.logprob <= 0 for token in content)
    assert content[0].bytes == [ord("a")]
    streamed = [chunk.choices[0].logprobs for chunk in client.chat.completions.create(stream=True, **how)]
    assert sum(len(piece.content) for piece in streamed if piece) == 4


def test_what_each_pass_committed_on_request(client):
    body = {"eagle": True}
    how = dict(model="speller", messages=asked("Spell!"), temperature=0, seed=9, extra_body=body)
    pieces = [chunk.eagle for chunk in client.chat.completions.create(stream=True, **how) if hasattr(chunk, "eagle")]
    assert all(len(piece["accepted_lengths"]) <= 1 for piece in pieces) and len(pieces) > 5
    lengths = [length for piece in pieces for length in piece["accepted_lengths"]]
    whole = client.chat.completions.create(**how).choices[0].eagle
    assert whole["stats"]["accepted_lengths"] == lengths == pieces[-1]["stats"]["accepted_lengths"]
    assert sum(lengths) + 1 == sum(len(piece["token_ids"]) for piece in pieces) == len(SCRIPT)
    assert whole["seed"] == 9 and whole["times"]["to_first"] > 0


def test_an_answer_that_took_no_pass_has_null_where_there_is_no_number(client):
    how = dict(model="speller", messages=asked("Spell!"), max_tokens=1, extra_body={"eagle": True})
    *_, last = [chunk for chunk in client.chat.completions.create(stream=True, **how) if hasattr(chunk, "eagle")]
    for told in (client.chat.completions.create(**how).choices[0].eagle, last.eagle):
        assert told["stats"]["accepted_by_depth"] == [None] * 3 and told["stats"]["mean_accepted_length"] is None


def test_errors_are_the_clients_own(client, served):
    with pytest.raises(openai.NotFoundError, match="model 'gpt-9' does not exist here; expected one of speller"):
        client.completions.create(model="gpt-9", prompt="a")
    with pytest.raises(openai.BadRequestError, match="it can have at most 47") as caught:
        client.completions.create(model="random", prompt=[1] * 50)
    assert caught.value.type == "invalid_request_error" and caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match=r"temperature=7.5; expected a number from 0 to 2") as caught:
        client.completions.create(model="random", prompt="a", temperature=7.5)
    assert caught.value.param == "temperature" and caught.value.request_id
    with served.client(api_key="another") as stranger, pytest.raises(openai.AuthenticationError, match="API key"):
        stranger.models.list()


def test_a_full_queue_says_when_to_come_again(client):
    with pytest.raises(openai.BadRequestError, match="9 prompts; expected at most 8 answers in total, the size of"):
        client.completions.create(model="random", prompt=[[1]] * 9)
    long = dict(model="random", prompt=[[1]] * 8, max_tokens=40, stream=True)
    streams = [client.completions.create(**long)]
    with pytest.raises(openai.RateLimitError, match="places in the queue are taken") as caught:
        for _ in range(3):
            streams.append(client.completions.create(**long))
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    for stream in streams:
        stream.close()


def test_who_goes_away_frees_a_slot(client, served):
    engine = served.engines["random"]
    _settle(engine)
    streams = [client.completions.create(model="random", prompt=[1], max_tokens=47, stream=True) for _ in range(4)]
    for stream in streams:
        next(iter(stream))
        stream.close()
    with served.client(timeout=0.05) as hasty, pytest.raises(openai.APITimeoutError):
        hasty.completions.create(model="random", prompt=[[1]] * 8, max_tokens=47)
    _settle(engine)
    assert client.completions.create(model="random", prompt=[1], max_tokens=2).usage.completion_tokens == 2


def test_health_and_metrics(client, served):
    client.completions.create(model="speller", prompt="a", max_tokens=2)

    def get(path: str, key: str = "") -> bytes:
        asked = urllib.request.Request(served.url + path, headers={"authorization": f"Bearer {key}"})
        with urllib.request.urlopen(asked) as answer:
            return answer.read()

    told = json.loads(get("/health"))
    assert told["status"] == "ok" and told["models"]["random"]["slots"] == 2
    with pytest.raises(urllib.error.HTTPError, match="401") as caught:
        get("/metrics", "another")
    caught.value.close()
    text = get("/metrics", KEY).decode()
    for name in ("completion_tokens_total", "accepted_length_sum", "queue_length", "slots_busy", "answers_total"):
        assert f"eagle_jax_{name}{{" in text, name
    assert 'eagle_jax_time_to_first_token_seconds_count{model="speller"}' in text
    for name in ("steps", "tokens", "seconds"):
        [spent] = re.findall(rf'eagle_jax_loop_{name}_total{{model="speller",nodes="\d+",rows="\d+"}} (\S+)', text)[:1]
        assert float(spent) > 0, name


def test_tokens_that_were_not_read_anew_are_told_and_counted(monkeypatch):
    for module in (chunked_prefill, scheduler):
        monkeypatch.setattr(module, "chunk_tokens", lambda: 8)
    prompt = list(range(30))
    with Engine(RANDOM, rows=2, max_tokens=48, **DYNAMIC) as engine:
        served = Served({"random": engine})
        with served.client() as client:
            how = dict(model="random", max_tokens=4, temperature=0)
            first = client.completions.create(prompt=prompt, **how).usage
            more = client.completions.create(prompt=[prompt, [*prompt, 5]], n=2, **how).usage
            *_, last = client.completions.create(
                prompt=prompt, stream=True, stream_options={"include_usage": True}, **how
            )
            salted = [client.completions.create(prompt=prompt, extra_body={"cache_salt": "a"}, **how) for _ in range(2)]
            question = dict(model="random", messages=asked("Who was it that said so?"), max_tokens=4, temperature=0)
            chats = [client.chat.completions.create(**question).usage for _ in range(2)]
        with urllib.request.urlopen(f"{served.url}/metrics") as answer:
            metrics = answer.read().decode()
        served.stop()
    usages = [first, more, last.usage, *chats, *(answer.usage for answer in salted)]
    assert [usage.prompt_tokens_details.cached_tokens for usage in usages] == [0, 48, 24, 0, 24, 0, 24]
    assert more.prompt_tokens == 61 and chats[1].prompt_tokens == 25
    assert 'eagle_jax_cached_tokens_total{model="random"} 168.0' in metrics
    assert 'eagle_jax_prefix_hits_total{model="random"} 7.0' in metrics
    assert 'eagle_jax_prefix_cache_bytes{model="random"} 0' not in metrics


def _settle(engine) -> None:
    """Until nobody is answered any more."""
    until = time.monotonic() + 30
    while engine.load.busy or engine.load.waiting:
        assert time.monotonic() < until, engine.load
        time.sleep(0.01)


def test_answers_that_take_too_long_are_cut(engines, monkeypatch):
    engine, report = engines["random"], engines["random"]._report
    cancelled = threading.Event()

    def after_the_end(event) -> None:
        report(event)
        assert cancelled.wait(30.0)

    cancel = engine._cancel
    monkeypatch.setattr(engine, "_cancel", lambda ticket: (cancel(ticket), cancelled.set()))
    monkeypatch.setattr(engine, "_report", after_the_end)
    served = Served(engines, limits=Limits(answer_seconds=2.0))
    with served.client() as client:
        answer = client.completions.create(model="random", prompt=[1], max_tokens=40)
        assert answer.choices[0].finish_reason == "length" and 0 < answer.usage.completion_tokens < 40
    served.stop()


def test_answers_that_are_never_begun_are_errors(engines, monkeypatch):
    monkeypatch.setattr(engines["random"], "_submit_waiting", lambda: None)  # every row is taken
    served = Served(engines, limits=Limits(answer_seconds=0.1))
    how = dict(model="random", prompt=[1], max_tokens=4)
    with served.client() as client:
        with pytest.raises(openai.InternalServerError, match="too busy to start this answer") as caught:
            client.completions.create(**how)
        assert caught.value.status_code == 503 and caught.value.response.headers["retry-after"]
        with pytest.raises(openai.APIError, match="too busy to start this answer"):
            list(client.completions.create(stream=True, **how))
    served.stop()
