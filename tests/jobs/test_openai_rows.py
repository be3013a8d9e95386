"""Rows in OpenAI's form get what the server answers to the same body, however often the job is interrupted."""

import json
import pathlib

import pytest
from caller import CALLER
from speller import DYNAMIC
from starlette.testclient import TestClient

from eagle_jax.api import Engine, Job, generate
from eagle_jax.jobs.output_parts import part_path
from eagle_jax.serving import create_app

CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
PARTS = [{"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "brief."}]
TALK = [
    {"role": "developer", "content": PARTS},
    {"role": "user", "content": "Hi", "name": "Ann"},
    {"role": "assistant", "content": None, "refusal": "No."},
    {"role": "assistant", "content": "Yes.", "refusal": None, "annotations": []},
    {"role": "user", "content": "?"},
]
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": LOOK}]
BODIES = {
    "roles, parts and refusals": (CHAT, {"messages": TALK}),
    "fields of clients": (
        CHAT,
        {"messages": TALK, "max_tokens": 9, "max_completion_tokens": 9, "service_tier": "flex", "store": True},
    ),
    "a template": (CHAT, {"messages": TALK, "chat_template_kwargs": {"script": "a"}, "reasoning_effort": "low"}),
    "samples": (CHAT, {"messages": TALK, "n": 3, "temperature": 2.0, "seed": 3, "max_tokens": 5}),
    "likely tokens": (CHAT, {"messages": TALK, "logprobs": True, "top_logprobs": 2, "max_tokens": 5}),
    "a prompt's likelihood": (CHAT, {"messages": TALK, "prompt_logprobs": 1, "max_tokens": 2}),
    "a choice": (CHAT, {"messages": TALK, "guided_choice": ["yes", "no"]}),
    "functions": (CHAT, {"messages": TALK, "tools": TOOLS, "parallel_tool_calls": False}),
    "prompts": (COMPLETION, {"prompt": ["ab", "c"], "max_tokens": 4, "n": 2, "temperature": 1.5, "seed": 1}),
    "an echo": (COMPLETION, {"prompt": "ab c", "max_tokens": 3, "echo": True, "logprobs": 2}),
    "an echo alone": (COMPLETION, {"prompt": [[70, 71], [72]], "max_tokens": 0, "echo": True, "logprobs": 0}),
    "a response": (RESPONSES, {"instructions": "Be brief.", "input": "?", "max_output_tokens": 4}),
}


def rows() -> list[dict]:
    return [{"custom_id": name, "url": url, "body": {"temperature": 0} | body} for name, (url, body) in BODIES.items()]


def run(folder: pathlib.Path, begun: int = 0) -> bytes:
    """The output of a job; after so many finished rows it is begun anew."""
    folder.mkdir()
    (folder / "in.jsonl").write_text("\ufeff" + "".join(json.dumps(row) + "\n" for row in rows()))
    for again in (True, False) if begun else (False,):
        with Job([folder / "in.jsonl"], folder / "out.jsonl") as job:
            job.run(CALLER, batch_size=4, **DYNAMIC)
            assert again or job.merge() == []
        if again:
            part = part_path(folder / "out.jsonl", 0, 1)
            part.write_bytes(b"".join(part.read_bytes().splitlines(keepends=True)[:begun]))
    return (folder / "out.jsonl").read_bytes()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> bytes:
    return run(tmp_path_factory.mktemp("job") / "once")


def without(value, *names: str):
    """What does not follow from the body alone is left out: ids, and how the answer was made."""
    if isinstance(value, dict):
        return {key: without(item, *names) for key, item in value.items() if key not in names}
    return [without(item, *names) for item in value] if isinstance(value, list) else value


@pytest.mark.proof
def test_the_server_answers_the_same(written):
    engine = Engine(CALLER, rows=2, max_tokens=128, max_queue=8, prefix_cache_bytes=0, **DYNAMIC)
    try:
        client = TestClient(create_app({"caller": engine}))
        for row, line in zip(rows(), written.splitlines(), strict=True):
            told = json.loads(line)
            assert told["custom_id"] == row["custom_id"] and told["error"] is None, told
            # a job has no default of its own for completions alone
            served = client.post(row["url"], json=row["body"]).json()
            made = ("id", "created", "created_at", "model", "eagle", "max_output_tokens")
            body = told["response"]["body"]
            if row["url"] == RESPONSES:
                assert body["output"][0]["content"] == served["output"][0]["content"] and body["eagle"]["seed"] >= 0
                continue
            assert close(without(body, *made), without(served, *made)), (row, body, served)
            assert all("stats" in choice["eagle"] for choice in body["choices"])
    finally:
        engine.close(drain=False)


def close(one, other) -> bool:
    """Equal; numbers to the last bits, in which rows of another batch may differ."""
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, abs=1e-5)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other


def test_a_stop_changes_nothing(written, tmp_path):
    for begun in (3, 8):
        assert run(tmp_path / str(begun), begun) == written


def test_python_reads_messages_as_openai_means_them():
    said = ("Be brief.", "Hi", "No.", "Yes.", "?")
    plain = [{**message, "content": text} for message, text in zip(TALK, said, strict=True)]
    plain[0]["role"] = "system"
    expected = CALLER.tokenizer.apply_chat_template(plain, add_generation_prompt=True)["input_ids"]
    one, other = (generate(CALLER, talk, max_new_tokens=2, **DYNAMIC) for talk in (plain, TALK))
    assert one.prompt_tokens == other.prompt_tokens == len(expected) and one.text == other.text
    for content, error in (
        ([{"type": "image_url"}], "reads text only"),
        (7, "expected {"),
        ([7], "expected an object"),
    ):
        with pytest.raises(ValueError, match=error):
            generate(CALLER, [{"role": "user", "content": content}], max_new_tokens=2)
