"""The recipe of the shipped pair: its data, its target's training and export, and what came of it."""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers

RECIPE = pathlib.Path(__file__).parents[2] / "recipes" / "gsm8k_pair"
sys.path.append(str(RECIPE))

import prepare  # noqa: E402
import train_target  # noqa: E402

from eagle_jax.converters import load_head, load_target  # noqa: E402
from eagle_jax.loading.folders import PAIR  # noqa: E402
from eagle_jax.training import data, eagle_heads  # noqa: E402
from eagle_jax.training.config import read_config  # noqa: E402

PROBLEMS = [
    {"question": "Tom has 3 apples and buys 4. How many?", "answer": "He has 3+4=<<3+4=7>>7 apples.\n#### 7"},
    {"question": "A pen costs $2. What do 5 cost?", "answer": "They cost 5*2=$<<5*2=10>>10.\n#### 10"},
    {"question": "Ann reads 12 pages a day. In 3 days?", "answer": "She reads 12*3=<<12*3=36>>36 pages.\n#### 36"},
]


@pytest.fixture
def problems(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(json.dumps(p) for p in PROBLEMS) + "\n", encoding="utf-8")
    return path


def learned(problems: pathlib.Path) -> transformers.PreTrainedTokenizerFast:
    texts = [message["content"] for chat in prepare.read(problems) for message in chat]
    return prepare.learn(texts, vocab_size=320, context=64)


def test_answers_read_as_a_person_would_write_them(problems: pathlib.Path):
    assert prepare.read(problems)[0] == [
        {"role": "user", "content": "Tom has 3 apples and buys 4. How many?"},
        {"role": "assistant", "content": "He has 3+4=7 apples.\nThe answer is 7."},
    ]


def test_split_is_a_partition_and_repeats(problems: pathlib.Path):
    chats = prepare.read(problems)
    training, held_out = prepare.split(chats, 1)
    assert len(training) == 2 and len(held_out) == 1
    assert sorted(map(str, training + held_out)) == sorted(map(str, chats))
    assert prepare.split(chats, 1) == (training, held_out)
    with pytest.raises(SystemExit, match="3 conversations; expected more than the 3"):
        prepare.split(chats, 3)


def test_tokenizer_round_trip_digits_and_answer_marks(problems: pathlib.Path):
    tokenizer, chat = learned(problems), prepare.read(problems)[0]
    text = "naïve café, 12345 → 7\n\n x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.decode([i]) for i in tokenizer.encode("360")] == ["3", "6", "0"]
    example = data.tokenize(chat, tokenizer)
    assert tokenizer.decode(example.tokens[example.answer]) == "He has 3+4=7 apples.\nThe answer is 7.<|end|>"
    prompt = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|bos|><|user|>Tom has 3 apples and buys 4. How many?<|end|><|assistant|>"
    assert tokenizer.decode(example.tokens) == prompt + chat[1]["content"] + "<|end|>"


def test_an_update_learns_and_the_exported_target_is_an_ordinary_folder(
    tmp_path: pathlib.Path, problems: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(train_target, "BATCH", 1)
    monkeypatch.setattr(train_target, "LENGTH", 64)
    tokenizer = learned(problems)
    examples = [data.tokenize(chat, tokenizer) for chat in prepare.read(problems)]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        trained = train_target.train(examples, examples, tokenizer.bos_token_id, 6)
    losses = [float(line.split()[3]) for line in capsys.readouterr().out.splitlines() if line.startswith("update")]
    assert losses[-1] < np.log(train_target.SHAPE.vocab_size) - 0.5

    train_target.export(trained, tokenizer, tmp_path / "target")
    read = load_target(tmp_path / "target")
    assert read.config == train_target.SHAPE and read.dtype == jnp.bfloat16
    rounded = jax.tree.map(lambda p: p.astype(jnp.bfloat16), trained.params)
    jax.tree.map(np.testing.assert_array_equal, read.params, rounded)
    reloaded, chat = transformers.AutoTokenizer.from_pretrained(tmp_path / "target"), prepare.read(problems)[0]
    assert reloaded.apply_chat_template(chat) == tokenizer.apply_chat_template(chat)


def test_the_shipped_pair_is_complete_small_and_of_the_recipes_sizes():
    size = sum(file.stat().st_size for file in PAIR.rglob("*") if file.is_file())
    assert 1e6 < size <= 10e6
    target = load_target(PAIR / "target")
    assert target.config == train_target.SHAPE
    for folder, settings in ("head", "eagle1.yaml"), ("head_eagle3", "eagle3.yaml"):
        expected = eagle_heads.shapes(read_config(RECIPE / settings).head, target.config)
        assert load_head(PAIR / folder, target).config == expected.config
