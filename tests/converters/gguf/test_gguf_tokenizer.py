"""Tokenizers in GGUF files: cut, merged and decoded as llama.cpp does, and what is refused."""

import pathlib
from types import SimpleNamespace

import pytest

from eagle_jax.converters.gguf import tokenizer as gguf_tokenizer
from eagle_jax.converters.gguf.config import end_ids
from eagle_jax.text.tokenizers import tokenizer_in
from tests.converters.folders import refused
from tests.converters.gguf import gguf_files
from tests.converters.gguf.gguf_files import add_sentencepiece, write


def test_byte_level_tokenizer(tmp_path, llama):
    """Digits stay apart, merges are followed, control tokens are whole."""
    tokenizer = tokenizer_in(write(tmp_path / "m.gguf", llama))
    ids = tokenizer("hello w  12<|im_end|>").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["hell", "o", "Ġw", "ĠĠ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello w  12"
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id) == (2, 1)


TEXT = "I'LL pay  $1234.5\n\nnow, don't fooBar!"
GPT2 = "I|'|LL| pay| | $|1234|.|5|\n|\n|now|,| don|'t| fooBar|!"
LLAMA3 = "I|'LL| pay| | $|123|4|.|5|\n\n|now|,| don|'t| fooBar|!"


@pytest.mark.parametrize(
    ("pre", "pieces", "bos", "whole", "composed"),
    [
        ("gpt-2", GPT2, False, False, False),
        ("smollm", GPT2.replace("1234", "1|2|3|4"), False, False, False),
        ("llama-bpe", LLAMA3, True, True, False),
        ("smaug-bpe", LLAMA3, False, False, False),
        ("qwen2", LLAMA3.replace("123|4", "1|2|3|4"), False, False, True),
        ("glm4", LLAMA3, False, False, False),
        (
            "gpt-4o",
            LLAMA3.replace("I|'LL", "I'LL").replace("n|'t", "n't").replace("oB", "o|B"),
            False,
            False,
            False,
        ),
        ("tekken", LLAMA3.replace("123|4", "1|2|3|4").replace("fooBar", "foo|Bar"), True, True, False),
    ],
)
def test_pre_tokenizers(tmp_path, llama, pre, pieces, bos, whole, composed):
    """Where text is cut before merging; whether it begins with BOS, whether a piece that is a token is taken whole
    though no merge makes it, and whether Unicode is composed first: as llama.cpp's llama-vocab.cpp has it.
    """
    tokenizer = tokenizer_in(write(tmp_path / "m.gguf", llama, pre=pre))
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)
    assert [TEXT[slice(*place)] for _, place in cut] == pieces.split("|")
    assert tokenizer.convert_ids_to_tokens(tokenizer("wow").input_ids) == [
        *(["<|im_start|>"] if bos else []),
        *(["wow"] if whole else ["w", "o", "w"]),
    ]
    assert (tokenizer("e\u0301").input_ids == tokenizer("\u00e9").input_ids) == composed


@pytest.mark.parametrize(("prefix", "kind"), [(True, "llama"), (False, "llama"), (False, "gemma4")])
def test_sentencepiece_tokenizer(tmp_path, llama, monkeypatch, prefix, kind):
    """Merges follow the scores or are stated, spaces become ▁, and what no token has falls apart into bytes."""
    monkeypatch.setattr(gguf_files, "add_byte_level", lambda writer, *_: add_sentencepiece(writer, prefix, kind))
    tokenizer = tokenizer_in(write(tmp_path / "m.gguf", llama))
    ids = tokenizer("ab  aé").input_ids
    words = ["▁", "ab"] if prefix else ["ab"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", *words, "▁▁", "a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab  aé"


def test_tokenizers_whose_parts_do_not_fit(monkeypatch):
    """What the tokenizers library would say in words of its own, or with a panic."""
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab"]
    whole = {"tokens": tokens, "token_type": [2, 3, 3, 1, 1, 1], "scores": [0.0] * 6, "merges": ["a b"], "pre": "gpt-2"}
    either = [
        ("bos_token_id", 6, "tokenizer.ggml.bos_token_id is 6; the vocabulary is 0 to 5"),
        ("eos_token_id", "</s>", "tokenizer.ggml.eos_token_id is '</s>'"),
        ("tokens", "abcdef", "tokenizer.ggml.tokens is no list of texts"),
        ("tokens", [1, 2, 3], "tokenizer.ggml.tokens is no list of texts"),
        ("token_type", [2, 3], "tokenizer.ggml.token_type has 2 entries for 6 tokens"),
    ]
    spoiled = {
        "gpt2": [
            *either,
            ("merges", ["a b", "x y"], "its merge 'x y' is not of two tokens that make a third"),
            ("merges", ["b a"], "its merge 'b a'"),
            ("merges", ["ab"], "its merge 'ab'"),
            ("merges", [1], "its merge 1"),
            ("pre", ["gpt-2"], "pre-tokenizer ['gpt-2'] is not known"),
        ],
        "llama": [*either, ("scores", [0.0], "tokenizer.ggml.scores has 1 entries for 6 tokens")],
    }
    for kind, cases in spoiled.items():
        for name, value, sentence in cases:
            entries = {f"tokenizer.ggml.{key}": item for key, item in (whole | {"model": kind, name: value}).items()}
            monkeypatch.setattr(gguf_tokenizer, "read_gguf", lambda _, e=entries: SimpleNamespace(metadata=e))
            with refused(ValueError, "the tokenizer in m.gguf cannot be read", sentence):
                gguf_tokenizer.tokenizer_of(pathlib.Path("m.gguf"))


def test_no_tokenizer(tmp_path, llama):
    path = write(tmp_path / "m.gguf", llama, tokenizer=False)
    assert tokenizer_in(path) is None and end_ids(path) == []


def test_unknown_pre_tokenizer(tmp_path, llama):
    path = write(tmp_path / "m.gguf", llama)
    path.write_bytes(path.read_bytes().replace(b"smollm", b"mollsm"))
    with refused(ValueError, "pre-tokenizer 'mollsm'", "llama-bpe"):
        tokenizer_in(path)
