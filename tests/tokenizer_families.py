"""Tiny tokenizers with the parts that the families' own `tokenizer.json` have: what differs is how they spell spaces,
bytes and special tokens.
"""

import functools
import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from eagle_jax.converters.gguf import tokenizer

WORDS = (
    "The capital of France is Paris. The sea is deep, and the sky is blue! def f(x):\n    return x + 1\n\n"
    "How do you do? I don't know - it's 12 or 2026, maybe. # one two three\n  two spaces,\ta tab. Naïve café über\n"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
HEAD = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
PLAIN_CHAT = "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
TIGHT_CHAT = "{% for m in messages %}<s>[INST] {{ m.content }}[/INST]{% endfor %}"
LINE_CHAT = "{% for m in messages %}[INST]{{ m.content }}</s>\n{% endfor %}{{ '[INST]model\n' }}"
_LLAMA2_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
_STRIP = decoders.Strip(" ", 1, 0)
_SPACES = normalizers.Replace(" ", "▁")
_PREPEND = normalizers.Sequence([normalizers.Prepend("▁"), _SPACES])


@functools.cache
def _trained(kind: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of BPE over words that begin with a mark, over bytes, or over words that end with one."""
    how: dict[str, Any] = {"vocab_size": 400 if kind == "bytes" else 150, "show_progress": False}
    core = Tokenizer(models.BPE())
    if kind == "bytes":
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        how["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "marks":
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    else:
        core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        how["end_of_word_suffix"] = "</w>"
    core.train_from_iterator([WORDS], trainers.BpeTrainer(**how))
    merges = json.loads(core.to_str())["model"]["merges"]
    return core.get_vocab(), [(left, right) for left, right in merges]


def _wrapped(core: Tokenizer, template: str, special: list[str] = HEAD, **how: Any) -> PreTrainedTokenizerFast:
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    if core.post_processor is None and "<s>" in special:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=template, **how
    )


def sentencepiece(
    template: str, *, special: list[str] = HEAD, normalizer: Any = _PREPEND, before: Any = None, strip: bool = True
) -> PreTrainedTokenizerFast:
    """As Llama 2's: words begin with a mark, and characters out of the vocabulary are spelled in byte tokens."""
    trained, merges = _trained("marks")
    pieces = dict.fromkeys([*HEAD, *BYTES, *sorted(trained, key=trained.__getitem__), "▁▁", "▁▁▁▁", "]", "["])
    vocabulary = {piece: id_ for id_, piece in enumerate(pieces)}
    merges = [*merges, ("▁", "▁"), ("▁▁", "▁▁")]
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if normalizer is not None:
        core.normalizer = normalizer
    if before is not None:
        core.pre_tokenizer = before
    core.decoder = decoders.Sequence([*_LLAMA2_DECODER, *([_STRIP] if strip else [])])
    return _wrapped(core, template, special)


def byte_level(template: str, before: Any = None, *, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """As GPT-2's and Llama 3's."""
    trained, merges = _trained("bytes")
    core = Tokenizer(models.BPE(trained, merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=before is None)
    core.pre_tokenizer = last if before is None else pre_tokenizers.Sequence([before, last])
    if normalizer is not None:
        core.normalizer = normalizer
    core.decoder = decoders.ByteLevel()
    return _wrapped(core, template)


def unigram() -> PreTrainedTokenizerFast:
    """As T5's: its decoder drops every mark of a text's first token."""
    trained, _ = _trained("marks")
    pieces = [*dict.fromkeys([*HEAD, *sorted(trained), "▁▁", *BYTES])]  # bytes are text to a decoder without fallback
    core = Tokenizer(models.Unigram([(piece, -float(place + 1) / len(piece)) for place, piece in enumerate(pieces)], 0))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    return _wrapped(core, PLAIN_CHAT)


def word_piece() -> PreTrainedTokenizerFast:
    """As BERT's: words are parts, and what is between them is lost."""
    core = Tokenizer(models.WordPiece({}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.train_from_iterator(
        [WORDS], trainers.WordPieceTrainer(vocab_size=150, special_tokens=HEAD, show_progress=False)
    )
    return _wrapped(core, PLAIN_CHAT)


def suffixed() -> PreTrainedTokenizerFast:
    """As CLIP's and XLM's: words end with a mark, which the last one's text does not show."""
    trained, merges = _trained("suffix")
    vocabulary = trained | {name: len(trained) + place for place, name in enumerate(HEAD)}
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.BPEDecoder()
    return _wrapped(core, PLAIN_CHAT)


def word_level() -> PreTrainedTokenizerFast:
    """Without a decoder: tokens are put together with spaces."""
    words = dict.fromkeys([*HEAD, *WORDS.split()])
    core = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrapped(core, PLAIN_CHAT)


def from_gguf(kind: str) -> PreTrainedTokenizerFast:
    """Made of a GGUF file's entries."""
    trained, merges = _trained("bytes" if kind == "gpt2" else "marks")
    pieces = [*dict.fromkeys([*HEAD, *(BYTES if kind == "llama" else []), *sorted(trained, key=trained.__getitem__)])]
    entries: dict[str, Any] = {
        "tokens": pieces,
        "token_type": [3 if piece in HEAD else 6 if piece in BYTES else 1 for piece in pieces],
        "scores": [-float(place) for place in range(len(pieces))],
        "merges": [f"{left} {right}" for left, right in merges],
        "pre": "llama-bpe",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return tokenizer._wrapped(tokenizer._KINDS[kind](entries), entries, TIGHT_CHAT)


_FIRST = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
_LLAMA3 = pre_tokenizers.Split(Regex(tokenizer._LLAMA3), behavior="isolated")
_QWEN2 = pre_tokenizers.Split(Regex(tokenizer._QWEN2), behavior="isolated")
_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_FALCON = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), _DIGITS])
_TEXT_ONLY = HEAD[:3]  # brackets around instructions are text

FAMILIES = {
    "Llama 2": lambda: sentencepiece(PLAIN_CHAT, special=_TEXT_ONLY),
    "Llama 2, not legacy": lambda: sentencepiece(PLAIN_CHAT, special=_TEXT_ONLY, normalizer=None, before=_FIRST),
    "Mistral v1": lambda: sentencepiece(TIGHT_CHAT, special=_TEXT_ONLY),
    "Mistral v3": lambda: sentencepiece(TIGHT_CHAT, normalizer=None, before=_FIRST),
    "Phi 3": lambda: sentencepiece(LINE_CHAT),
    "Gemma": lambda: sentencepiece(LINE_CHAT, normalizer=_SPACES, strip=False),
    "GGUF llama": lambda: from_gguf("llama"),
    "GGUF gpt2": lambda: from_gguf("gpt2"),
    "Llama 3": lambda: byte_level(LINE_CHAT, _LLAMA3),
    "Qwen 2": lambda: byte_level(LINE_CHAT, _QWEN2, normalizer=normalizers.NFC()),
    "GPT-2": lambda: byte_level(PLAIN_CHAT),
    "DeepSeek": lambda: byte_level(PLAIN_CHAT, _DIGITS),
    "Falcon": lambda: byte_level(PLAIN_CHAT, _FALCON),
    "T5": unigram,
    "WordPiece": word_piece,
    "suffixes": suffixed,
    "no decoder": word_level,
}


@functools.cache
def family(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a family."""
    return FAMILIES[name]()
