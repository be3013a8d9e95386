"""Vocabularies in the files that tokenizer.json is made of."""

import base64
import io
import json
import pathlib

import pytest

from eagle_jax.text.tokenizers import tokenizer_in

CLASS = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
PIECE = b"\n\x0e\n\x05<unk>"  # how models of SentencePiece begin
RANKS = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))


def folder(path: pathlib.Path, content: bytes | None) -> pathlib.Path:
    path.mkdir()
    (path / "tokenizer_config.json").write_text(json.dumps(CLASS))
    if content is not None:
        (path / "tokenizer.model").write_bytes(content)
    return path


def test_what_is_missing_is_named(tmp_path, monkeypatch, capfd):
    """Not what the last of transformers' readers lacks, nor each reader that it tries in vain."""
    monkeypatch.setattr("eagle_jax.text.tokenizers._is_installed", lambda module: False)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 499723\n"
    no_model = r"\(tokenizer.model is not a SentencePiece model, or it is damaged\); copy or download it again$"
    cases = {
        "alone": (PIECE, r"\(tokenizer.model is a SentencePiece model, .*\); pip install sentencepiece protobuf$"),
        "ranks": (RANKS, r"\(tokenizer.model is a tiktoken model, which needs tiktoken\); pip install tiktoken$"),
        "pointer": (pointer, no_model),
        "nothing": (None, "has only special tokens; copy or download its files again$"),
    }
    for name, (content, sentence) in cases.items():
        with pytest.raises(ValueError, match=f"^the tokenizer in .*{name} .*{sentence}"):
            tokenizer_in(folder(tmp_path / name, content))
    assert "SentencePiece" not in capfd.readouterr().err


def test_a_damaged_model_is_not_for_another_reader(tmp_path, monkeypatch):
    monkeypatch.setattr("eagle_jax.text.tokenizers._is_installed", lambda module: True)
    with pytest.raises(ValueError, match=r"\(tokenizer.model is not a SentencePiece model, or it is damaged\)"):
        tokenizer_in(folder(tmp_path / "m", PIECE))


def test_with_sentencepiece_it_loads(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    model, lines = io.BytesIO(), iter(["the sea is deep and the sky is blue"] * 10)
    how = {"vocab_size": 300, "model_type": "bpe", "byte_fallback": True, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, minloglevel=2, **how)
    tokenizer = tokenizer_in(folder(tmp_path / "m", model.getvalue()))
    assert tokenizer.decode(tokenizer("the sea 한").input_ids, skip_special_tokens=True) == "the sea 한"
