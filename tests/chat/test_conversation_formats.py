"""Conversation files of every form that is known, and what is wrong with those that are not."""

import json

import pytest

from eagle_jax.chat.conversations import Conversation, Skipped, read

ASKED = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]

RECORDS = {
    "sharegpt": {"id": "a", "conversations": [{"from": "human", "value": "2 + 3?"}, {"from": "gpt", "value": "5"}]},
    "openai": {"messages": ASKED},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "2 + 3?"}]}, ASKED[1]]},
    "ultrachat": {"data": ["2 + 3?", "5", "and"]},
    "instruction": {"instruction": "2 + 3?", "input": "", "response": "5"},
    "alpaca": {"instruction": "2 + 3?", "output": "5"},
    "question": {"question": "2 + 3?", "answer": "5"},
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("whole", [True, False], ids=["list", "lines"])
def test_every_form_reads_as_messages(tmp_path, name, whole):
    path = tmp_path / "chats"
    record = RECORDS[name]
    text = json.dumps([record, record]) if whole else "\n".join(["", json.dumps(record), json.dumps(record), ""])
    path.write_text(text, encoding="utf-8")
    got = list(read(path))
    assert [list(conversation.messages) for conversation in got] == [ASKED, ASKED]
    places = [f"{path}: record 1", f"{path}: record 2"] if whole else [f"{path}:2", f"{path}:3"]
    assert [conversation.place for conversation in got] == places


@pytest.mark.parametrize("whole", [True, False], ids=["list", "lines"])
def test_a_byte_order_mark_is_passed_over(tmp_path, whole):
    path = tmp_path / "chats"
    record = RECORDS["openai"]
    path.write_text(json.dumps([record] if whole else record), encoding="utf-8-sig")
    (got,) = read(path)
    assert list(got.messages) == ASKED


def test_an_instruction_has_its_input_below(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"instruction": "Add.", "input": "2, 3", "response": "5"}))
    (got,) = read(path)
    assert got.messages[0]["content"] == "Add.\n\n2, 3"


def test_a_system_message_stays_and_loose_ends_go(tmp_path):
    said = [("system", "Be brief."), ("gpt", "Hi!"), ("human", "2 + 3?"), ("gpt", "5"), ("human", "Thanks")]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"conversations": [{"from": who, "value": what} for who, what in said]}))
    (got,) = read(path)
    assert list(got.messages) == [{"role": "system", "content": "Be brief."}, *ASKED]


def test_what_cannot_be_read_is_skipped_with_its_place(tmp_path):
    path = tmp_path / "chats.jsonl"

    def chat(*said):
        return json.dumps({"conversations": [{"from": who, "value": what} for who, what in said]}).encode()

    lines = {
        b"{broken": "not JSON",
        b"[" * 100_000: "not JSON",
        b'"text"': "not a JSON object",
        b'{"a": "\xff"}': "not UTF-8 text",
        b'{"messages": []}': "no key 'conversations'",
        b'{"conversations": [3]}': "not in the form of the file's first record",
        chat(): "no question with an answer",
        chat(("human", "Hi")): "no question with an answer",
        chat(("human", "Hi"), ("human", "Hi"), ("gpt", "5")): "user where assistant should speak",
        chat(("tool", "Hi"), ("gpt", "5")): "the role 'tool'",
        chat(("human", "Hi"), ("gpt", " ")): "an empty message",
        chat(("human", "Hi"), ("gpt", 5)): "a message that is not text",
        chat(("human", "Hi"), ("gpt", "\ud83d")): "a lone surrogate",
    }
    path.write_bytes(b"\n".join([chat(("human", "Hi"), ("gpt", "5")), *lines]))
    first, *rest = read(path)
    assert isinstance(first, Conversation)
    for number, (got, reason) in enumerate(zip(rest, lines.values(), strict=True), start=2):
        assert isinstance(got, Skipped) and got.place == f"{path}:{number}" and got.reason.startswith(reason)


def test_a_file_of_no_known_form_is_refused(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text('{"text": "Once upon a time", "id": 3}')
    with pytest.raises(ValueError, match=r"chats.jsonl:1 has the keys 'text', 'id'; expected conversations"):
        list(read(path))
    for text in ("[3, {", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match="starts as a JSON list but is not valid JSON"):
            list(read(path))
    path.write_text("")
    assert list(read(path)) == []
    with pytest.raises(FileNotFoundError):
        list(read(tmp_path / "none"))
