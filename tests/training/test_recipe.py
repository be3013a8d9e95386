"""The recipe of the shipped pair: its data, its fast training pass, its export, and what came of it."""

import dataclasses
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from toy import pair

sys.path.append(str(pathlib.Path(__file__).parents[2] / "recipes" / "gsm8k_pair"))

import conversations  # noqa: E402
import export_target  # noqa: E402
import fast_llama  # noqa: E402
import make_answers  # noqa: E402
import make_tokenizer  # noqa: E402
import narrow_head  # noqa: E402
import shape  # noqa: E402

from eagle_jax.converters import load_head, load_target  # noqa: E402
from eagle_jax.models.lm import LM  # noqa: E402
from eagle_jax.training import data, heads  # noqa: E402
from eagle_jax.training.config import read_config  # noqa: E402

PROBLEMS = [
    {"question": "Tom has 3 apples and buys 4. How many?", "answer": "He has 3+4=<<3+4=7>>7 apples.\n#### 7"},
    {"question": "A pen costs $2. What do 5 cost?", "answer": "They cost 5*2=$<<5*2=10>>10.\n#### 10"},
    {"question": "Ann reads 12 pages a day. In 3 days?", "answer": "She reads 12*3=<<12*3=36>>36 pages.\n#### 36"},
]


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(json.dumps(p) for p in PROBLEMS) + "\n", encoding="utf-8")
    return conversations.read(path)


def test_answers_read_as_a_person_would_write_them(chats):
    assert chats[0] == [
        {"role": "user", "content": "Tom has 3 apples and buys 4. How many?"},
        {"role": "assistant", "content": "He has 3+4=7 apples.\nThe answer is 7."},
    ]


def test_split_is_a_partition_and_repeats(chats):
    training, held_out = conversations.split(chats, 1)
    assert len(training) == 2 and len(held_out) == 1
    assert sorted(map(str, training + held_out)) == sorted(map(str, chats))
    assert conversations.split(chats, 1) == (training, held_out)
    with pytest.raises(ValueError, match="held_out=3"):
        conversations.split(chats, 3)


def test_tokenizer_round_trip_digits_and_answer_marks(chats):
    tokenizer = make_tokenizer.learn([m["content"] for chat in chats for m in chat], vocab_size=320, context=64)
    text = "naïve café, 12345 → 7\n\n x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.decode([i]) for i in tokenizer.encode("360")] == ["3", "6", "0"]
    example = data.tokenize(chats[0], tokenizer)
    assert tokenizer.decode(example.tokens[example.answer]) == "He has 3+4=7 apples.\nThe answer is 7.<|end|>"
    prompt = tokenizer.apply_chat_template(chats[0][:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|bos|><|user|>Tom has 3 apples and buys 4. How many?<|end|><|assistant|>"
    assert tokenizer.decode(example.tokens) == prompt + chats[0][1]["content"] + "<|end|>"


def test_fast_pass_is_the_models_function():
    target, _ = pair()
    tokens = jax.random.randint(jax.random.key(3), (2, 200), 0, 29)  # more than one attention block
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        got = fast_llama.hidden_states(target.params, tokens, target.config)
    expected = target(tokens)[0]
    np.testing.assert_allclose(got, expected, atol=0.05 * float(jnp.abs(expected).max()))
    assert float(jnp.mean(jnp.abs(got - expected))) < 0.01, "bfloat16 products lose more than their rounding"


def test_answers_survive_their_file(tmp_path):
    examples = [data.Example(np.arange(n, dtype=np.int32), np.arange(n) > 2) for n in (4, 7)]
    make_answers.save(tmp_path / "answers.npz", examples)
    for got, expected in zip(make_answers.load(tmp_path / "answers.npz"), examples, strict=True):
        np.testing.assert_array_equal(got.tokens, expected.tokens)
        np.testing.assert_array_equal(got.answer, expected.answer)


def test_exported_target_is_an_ordinary_folder(tmp_path, chats):
    tokenizer = make_tokenizer.learn([m["content"] for chat in chats for m in chat], vocab_size=320, context=64)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    written = LM.init(shape.TARGET, jax.random.key(0), jnp.dtype("float32"))
    shape.save(tmp_path / "target.npz", written.params)
    export_target.export(shape.load(tmp_path / "target.npz"), shape.TARGET, tmp_path / "tokenizer", tmp_path / "target")
    read = load_target(tmp_path / "target")
    assert read.config == shape.TARGET and read.dtype == jnp.bfloat16
    rounded = jax.tree.map(lambda p: p.astype(jnp.bfloat16), written.params)
    jax.tree.map(np.testing.assert_array_equal, read.params, rounded)
    reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "target")
    assert reloaded.apply_chat_template(chats[0]) == tokenizer.apply_chat_template(chats[0])


def test_the_shipped_pair_is_complete_and_small():
    folder = pathlib.Path(export_target.__file__).parents[2] / "eagle_jax" / "pair"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert 1e6 < size <= 25e6
    target = load_target(folder / "target")
    assert target.config == shape.TARGET
    sizes = {}
    for name, settings in ("head", "eagle1_1.yaml"), ("head_eagle3", "eagle3_1.yaml"):
        asked = read_config(pathlib.Path(export_target.__file__).with_name(settings))
        sizes[name] = heads.shapes(asked.head, shape.TARGET).config
    assert load_head(folder / "head_eagle3", target).config == sizes["head_eagle3"]
    narrower = dataclasses.replace(sizes["head"].layers, intermediate_size=384)
    drafted = dataclasses.replace(sizes["head"], layers=narrower, draft_vocab_size=1536)
    assert load_head(folder / "head", target).config == drafted


def test_a_narrowed_head_keeps_the_neurons_that_say_most(tmp_path, monkeypatch, capsys):
    target = LM.init(shape.TARGET, jax.random.key(0))
    folder = pathlib.Path(narrow_head.__file__).parents[2] / "eagle_jax" / "pair" / "head"
    command = ["narrow_head.py", "--head", str(folder), "--width", "100", "--out", str(tmp_path / "narrow")]
    monkeypatch.setattr("sys.argv", command)
    narrow_head.main()
    whole, narrow = load_head(folder, target), load_head(tmp_path / "narrow", target)
    assert narrow.config.layers.intermediate_size == 100
    was, now = (jax.tree.map(np.asarray, head.params["layers_0"]["mlp"]) for head in (whole, narrow))
    kept = [np.flatnonzero((was["gate_proj"]["weight"] == row).all(1)) for row in now["gate_proj"]["weight"]]
    assert all(len(found) == 1 for found in kept)
    places = np.concatenate(kept)
    assert (np.diff(places) > 0).all()
    np.testing.assert_array_equal(now["up_proj"]["weight"], was["up_proj"]["weight"][places])
    np.testing.assert_array_equal(now["down_proj"]["weight"], was["down_proj"]["weight"][:, places])
    left = np.setdiff1d(np.arange(whole.config.layers.intermediate_size), places)
    size = np.linalg.norm(was["gate_proj"]["weight"].astype(np.float32), axis=1)
    assert size[places].mean() > size[left].mean()
