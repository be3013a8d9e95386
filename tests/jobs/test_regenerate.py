"""Conversations answered anew, over a stand-in for decoding that answers by prompt and seed."""

import json
import sys
import types

import pytest

from eagle_jax import api
from eagle_jax.chat.prompts import ChatTemplateError

QUESTIONS = [["a"], ["b", "c"], ["long"], ["empty"], ["d", "empty"], ["e"], ["cut", "f"]]


class Stopped(Exception):
    """The machine went away."""


class Decoder:
    """Answers `<question>:<seed>`, and goes away after so many calls."""

    def __init__(self, calls: int = 99):
        self.calls, self.asked = calls, []

    def __call__(self, model, prompts, *, seed, batch_size, **sampling):
        if len(self.asked) == self.calls:
            raise Stopped
        self.asked.append([bytes(prompt).decode() for prompt in prompts])
        return [self.answer(question, one) for question, one in zip(self.asked[-1], seed, strict=True)]

    def answer(self, question, seed):
        text = "" if question == "empty" else f"{question}:{seed}"
        return types.SimpleNamespace(text=text, finish_reason="length" if question == "cut" else "stop")


@pytest.fixture
def model(monkeypatch):
    module = sys.modules["eagle_jax.jobs.regenerate"]
    sizes = {"long": 16}
    monkeypatch.setattr(
        module, "encode", lambda _, asked, *rest: [*asked[-1]["content"].encode()] * sizes.get(asked[-1]["content"], 1)
    )
    monkeypatch.setattr(module, "BATCHES_PER_WRITE", 1)
    model = object.__new__(api.Model)
    tokenizer = types.SimpleNamespace(chat_template="{{ messages }}")
    target = types.SimpleNamespace(config=types.SimpleNamespace(vocab_size=9))
    for name, value in {"target": target, "tokenizer": tokenizer, "context": 64}.items():
        object.__setattr__(model, name, value)
    return model


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "chats.jsonl"
    said = [[part for q in questions for part in (("human", q), ("gpt", "old"))] for questions in QUESTIONS]
    lines = [json.dumps({"conversations": [{"from": who, "value": what} for who, what in talk]}) for talk in said]
    path.write_text("\n".join([*lines[:2], "{broken", *lines[2:]]))
    return path


def decode_with(monkeypatch, decoder):
    monkeypatch.setattr(sys.modules["eagle_jax.jobs.regenerate"], "generate", decoder)
    return decoder


def test_every_conversation_is_had_again(model, data, tmp_path, monkeypatch):
    decode_with(monkeypatch, Decoder())
    seen = []
    out = tmp_path / "deep" / "out.jsonl"
    made = api.regenerate(model, data, out, batch_size=2, seed=7, progress=lambda *done: seen.append(done))
    assert (made.answered, made.before, made.cut, made.skipped) == (5, 0, 1, 3)
    assert seen[-1] == (7, 7)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["id"] for record in records] == [1, 2, 6, 7, 8]  # the line number among all records
    assert [record["finish_reason"] for record in records] == ["stop", "stop", "stop", "stop", "length"]
    assert [[said["content"].split(":")[0] for said in record["messages"]] for record in records] == [
        ["a", "a"], ["b", "b", "c", "c"], ["d", "d"], ["e", "e"], ["cut", "cut"],
    ]  # fmt: skip
    answers = [said["content"] for record in records for said in record["messages"] if said["role"] == "assistant"]
    assert len({answer.split(":")[1] for answer in answers}) == len(answers), "every answer has noise of its own"
    assert records[0]["generation"]["seed"] == 7


def test_a_restart_goes_on_and_the_file_comes_out_the_same(model, data, tmp_path, monkeypatch):
    decode_with(monkeypatch, Decoder())
    api.regenerate(model, data, tmp_path / "whole.jsonl", batch_size=2)
    out = tmp_path / "out.jsonl"
    first = decode_with(monkeypatch, Decoder(calls=4))
    with pytest.raises(Stopped):
        api.regenerate(model, data, out, batch_size=2)
    with out.open("a") as file:
        file.write('{"id": 99, "mess')  # a line that was being written
    again = decode_with(monkeypatch, Decoder())
    made = api.regenerate(model, data, out, batch_size=2)
    assert made.before == 2 and made.answered == 3
    assert out.read_text() == (tmp_path / "whole.jsonl").read_text()
    assert not {"a", "b"} & {question for batch in again.asked for question in batch}, "nothing is answered twice"
    assert first.asked[0] == ["a", "b"]
    finished = decode_with(monkeypatch, Decoder())
    api.regenerate(model, data, out, batch_size=2)
    assert {question for batch in finished.asked for question in batch} <= {"empty"}


def test_what_the_template_refuses_is_skipped(model, data, tmp_path, monkeypatch):
    decode_with(monkeypatch, Decoder())
    encode = sys.modules["eagle_jax.jobs.regenerate"].encode

    def refusing(_, asked, *rest):
        if asked[-1]["content"] in ("c", "e"):
            raise ChatTemplateError("the conversation does not fit the model's chat template")
        return encode(_, asked, *rest)

    monkeypatch.setattr(sys.modules["eagle_jax.jobs.regenerate"], "encode", refusing)
    made = api.regenerate(model, data, tmp_path / "out.jsonl", batch_size=2)
    assert (made.answered, made.skipped) == (4, 4)
    records = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert {record["id"]: len(record["messages"]) for record in records} == {1: 2, 2: 2, 6: 2, 8: 2}


def test_another_mistake_of_a_prompt_is_none_to_skip(model, data, tmp_path, monkeypatch):
    def wrong(*_):
        raise ValueError("conversation 1 holds token id 70; the model's vocabulary is 0 to 63")

    monkeypatch.setattr(sys.modules["eagle_jax.jobs.regenerate"], "encode", wrong)
    with pytest.raises(ValueError, match="holds token id 70"):
        api.regenerate(model, data, tmp_path / "out.jsonl", batch_size=2)


def test_writes_are_as_far_apart_as_asked(model, data, tmp_path, monkeypatch):
    decoder = Decoder()
    decode_with(monkeypatch, decoder)
    api.regenerate(model, data, tmp_path / "out.jsonl", batch_size=2, write_every=5)
    assert [len(asked) for asked in decoder.asked] == [
        4,
        2,
        2,
    ]  # of the first five one does not fit, and two have a second turn


def test_a_limit_counts_conversations(model, data, tmp_path, monkeypatch):
    decode_with(monkeypatch, Decoder())
    assert api.regenerate(model, data, tmp_path / "out.jsonl", limit=2).answered == 2


def test_what_cannot_be_continued_is_left_alone(model, data, tmp_path, monkeypatch):
    decode_with(monkeypatch, Decoder())
    out = tmp_path / "out.jsonl"
    api.regenerate(model, data, out, temperature=1.0, limit=1)
    before = out.read_text()
    with pytest.raises(ValueError, match="out.jsonl was begun with other settings: temperature was 1.0 and is 0.0 now"):
        api.regenerate(model, data, out)
    assert out.read_text() == before
    model.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        api.regenerate(model, data, tmp_path / "other.jsonl")


def test_another_target_or_other_data_is_not_mixed_in(model, data, tmp_path, monkeypatch):
    decode_with(monkeypatch, Decoder())
    out = tmp_path / "out.jsonl"
    api.regenerate(model, data, out, limit=1, made_with={"target": "ab", "quantize": None})
    before = out.read_bytes()
    with pytest.raises(
        ValueError, match="target was ab and is cd now; quantize was not set and is int8 now; give the same"
    ):
        api.regenerate(model, data, out, made_with={"target": "cd", "quantize": "int8"})
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="operations was not set and is {.EAGLE_JAX_"):
        patch.setenv("EAGLE_JAX_OPS", "xla")
        api.regenerate(model, data, out, made_with={"target": "ab", "quantize": None})
    other = tmp_path / "other.jsonl"
    other.write_text(data.read_text().replace('"a"', '"z"'))
    with pytest.raises(ValueError, match="other settings: data was [0-9a-f]{16} and is [0-9a-f]{16} now"):
        api.regenerate(model, other, out, made_with={"target": "ab", "quantize": None})
    assert out.read_bytes() == before
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(data.read_bytes())
    assert api.regenerate(model, copy, out, made_with={"target": "ab", "quantize": None}).before == 1


def test_a_line_that_states_the_options_alone_is_gone_on_with(model, data, tmp_path, monkeypatch):
    decode_with(monkeypatch, Decoder())
    out = tmp_path / "out.jsonl"
    api.regenerate(model, data, out, limit=1)
    record = json.loads(out.read_text())
    del record["generation"]["data"]
    out.write_text(json.dumps(record) + "\n")
    assert api.regenerate(model, data, out, made_with={"target": "ab"}).before == 1


SAID = '"messages": [{"role": "user", "content": "a"}]'
LEFT_ALONE = {
    "prose": "Dear diary,",
    "a list": "[1, 2]",
    "a record": f'{{"id": 1, {SAID}}}',
    "an id that is text": f'{{"id": "a1", {SAID}',
    "lines": "a\nb\n",
    "settings of others": f'{{"id": 1, {SAID}, "generation": {{}}}}\n',
    "no id": f'{{{SAID}, "generation": {{"seed": 0}}}}\n',
    "settings that are text": '{"id": 1, "generation": "seed"}\n',
    "deep": "[" * 100_000 + "\n",
}


@pytest.mark.parametrize("text", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_files_of_others_are_left_alone(model, data, tmp_path, monkeypatch, text):
    decode_with(monkeypatch, Decoder())
    out = tmp_path / "out.jsonl"
    out.write_text(text)
    with pytest.raises(ValueError, match="out.jsonl has other content; name another file"):
        api.regenerate(model, data, out)
    assert out.read_text() == text


@pytest.mark.parametrize("length", [0, 3, 8, 9, 12, 30, 60, -2, -1])
def test_a_first_line_that_was_not_finished_is_written_again(model, data, tmp_path, monkeypatch, length):
    decode_with(monkeypatch, Decoder())
    out = tmp_path / "out.jsonl"
    api.regenerate(model, data, out, limit=1)
    whole = out.read_bytes()
    out.write_bytes(whole[:length])
    assert api.regenerate(model, data, out, limit=1).answered == 1
    assert out.read_bytes() == whole


def test_the_input_is_no_output(model, data, tmp_path, monkeypatch):
    decode_with(monkeypatch, Decoder())
    before, link = data.read_bytes(), tmp_path / "link.jsonl"
    link.symlink_to(data)
    for out in (data, link):
        with pytest.raises(ValueError, match="is both input and output; name another output"):
            api.regenerate(model, data, out)
    assert data.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "why"), [("", "chats.jsonl; give"), ("[]", "chats.jsonl; give"), ("{broken", r"\(at .*:1: not JSON\)")]
)
def test_data_without_a_conversation_is_refused(model, data, tmp_path, text, why):
    data.write_text(text)
    with pytest.raises(ValueError, match=f"no conversation in .*{why}"):
        api.regenerate(model, data, tmp_path / "out.jsonl")
    with pytest.raises(FileNotFoundError):
        api.regenerate(model, tmp_path / "none.jsonl", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_row_can_have(model, data, tmp_path, seed):
    with pytest.raises(ValueError, match=f"seed={seed}; expected a whole number from 0 to"):
        api.regenerate(model, data, tmp_path / "out.jsonl", seed=seed)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"write_every": 0}, {"limit": 0}, {"limit": -1}])
def test_counts_that_are_none_are_refused_before_anything_is_written(wrong, model, data, tmp_path):
    with pytest.raises(ValueError, match="expected a whole number, 1 or more"):
        api.regenerate(model, data, tmp_path / "out.jsonl", **wrong)
    assert not (tmp_path / "out.jsonl").exists()


def test_one_process_writes_at_a_time(model, data, tmp_path, monkeypatch):
    out, refused = tmp_path / "out.jsonl", []

    class Twice(Decoder):
        def __call__(self, *asked, **options):
            with pytest.raises(ValueError, match="another process is writing into .*out.jsonl; wait until it ends"):
                api.regenerate(model, data, out)
            refused.append(out.stat().st_size)
            return super().__call__(*asked, **options)

    decode_with(monkeypatch, Twice())
    api.regenerate(model, data, out, batch_size=2)
    assert refused[0] == 0 < refused[-1], "from the first answer to the last"
    assert len(out.read_text().splitlines()) == 5


def test_training_reads_what_was_written(model, data, tmp_path, monkeypatch):
    from eagle_jax.chat.conversations import read

    decode_with(monkeypatch, Decoder())
    out = tmp_path / "out.jsonl"
    api.regenerate(model, data, out)
    assert [(len(talk.messages), talk.cut) for talk in read(out)] == [
        (2, False), (4, False), (2, False), (2, False), (2, True),
    ]  # fmt: skip
