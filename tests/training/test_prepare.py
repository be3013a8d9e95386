"""What becomes of conversation files, and the account of it."""

import json

import numpy as np
import pytest
from families import family

from eagle_jax.training.masks import Example
from eagle_jax.training.prepare import merge_reports, prepare, split_held_out


@pytest.fixture(scope="module")
def tokenizer():
    return family("ours")


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "chats.jsonl"
    said = [("Hi", "I am well."), ("What?", "Hello " * 40), ("Hi", "")]
    records = [json.dumps({"question": question, "answer": answer}) for question, answer in said]
    path.write_text("\n".join([*records, "{", "{", "{", "{", records[0]]))
    return [str(path)]


def options(tokenizer, **changed):
    return dict(tokenizer=tokenizer, vocab_size=len(tokenizer), length=32, over_long="drop") | changed


def test_the_report_accounts_for_every_record(tokenizer, files):
    seen = []
    examples, report = prepare(files, **options(tokenizer, progress=seen.append))
    assert [tokenizer.decode(e.tokens[e.answer]) for e in examples] == ["I am well.<|end|>"] * 2
    assert (report.kept, report.cut, seen) == (2, 0, [1, 2])
    assert [(d.reason, d.count) for d in report.dropped] == [
        ("not JSON", 4),
        ("longer than 32 tokens", 1),
        ("an empty message", 1),
    ]
    assert report.dropped[0].places == tuple(f"{files[0]}:{line}" for line in (4, 5, 6))
    assert report.tokens == sum(len(e.tokens) for e in examples)
    assert report.share == sum(e.answer.sum() for e in examples) / report.tokens
    assert merge_reports(report, report).kept == 4


def test_long_conversations_are_cut_on_request(tokenizer, files):
    examples, report = prepare(files, **options(tokenizer, over_long="cut"))
    assert [len(e.tokens) for e in examples][1] == 32 and report.cut == 1 and report.kept == 3
    with pytest.raises(ValueError, match="none of 8 conversations"):
        prepare(files, **options(tokenizer, over_long="cut", length=3))  # no answer begins within three tokens


def test_an_answer_that_was_cut_gets_no_end(tokenizer, tmp_path):
    path = tmp_path / "chats.jsonl"
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am well."}]
    path.write_text(json.dumps({"messages": said * 2, "finish_reason": "length"}))
    ((example,), _) = prepare([str(path)], **options(tokenizer))
    assert tokenizer.decode(example.tokens).endswith("I am well.<|end|><|user|>Hi<|end|><|assistant|>I am well.")
    assert tokenizer.decode(example.tokens[example.answer]) == "I am well.<|end|>I am well."


def test_a_limit_counts_what_can_be_used(tokenizer, files):
    assert prepare(files, **options(tokenizer, limit=1))[1].kept == 1


def test_data_that_cannot_be_used_says_why(tokenizer, files, tmp_path):
    with pytest.raises(ValueError, match=r"none of 8 conversations can be used; at .*:4: not JSON"):
        prepare(files, **options(tokenizer, length=3))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(ValueError, match="empty.jsonl: there are no conversations"):
        prepare([str(empty)], **options(tokenizer))
    with pytest.raises(ValueError, match="vocabulary is 0 to 9: the tokenizer is another model's"):
        prepare(files, **options(tokenizer, vocab_size=10))


def test_split_is_a_partition_and_repeats():
    examples = [Example(np.array([i], np.int32), np.array([True])) for i in range(20)]
    training, held_out = split_held_out(examples, 0.1, seed=3)
    assert len(held_out) == 2 and {*map(id, training), *map(id, held_out)} == {*map(id, examples)}
    assert split_held_out(examples, 0.1, seed=3) == (training, held_out)
    with pytest.raises(ValueError, match="1 conversations are too few to hold 1 out"):
        split_held_out(examples[:1], 0.1, seed=3)
