"""The tokenizer in a GGUF file's metadata, as one of transformers.

tokenizer.ggml.model   "gpt2": BPE over bytes; tokenizer.ggml.pre names how text is split before
                       "llama": SentencePiece's BPE, whose merges follow from the scores of the tokens
                       "gemma4": the same, with its merges
tokens, token_type     what each id is: 1 text, 2 unknown, 3 control, 4 defined by the user, 5 unused, 6 a byte
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from eagle_jax.converters.gguf.file import read_gguf

_CONTROL, _USER_DEFINED = 3, 4
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_SPACE = "▁"  # SentencePiece's

_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_WORD = rf"{_BEFORE}\p{{L}}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SHORT_FORMS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_SHORT_FORMS}|{_WORD}|\p{{N}}|{_REST}"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_WITH_SLASH}"
_O200K = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_SHORT_FORMS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_SHORT_FORMS}?"
    rf"|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}"
)


class _Split(NamedTuple):
    """A pre-tokenizer: how text is split before BPE.

    Attributes:
        regex: of one piece; None is GPT-2's.
        digits: each digit is a piece.
        ignore_merges: a piece that is a token is taken as it is.
        adds_bos: text begins with the BOS token, unless the file says otherwise.
        nfc: text is brought into Unicode's composed form first.
    """

    regex: str | None = None
    digits: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False
    nfc: bool = False


_GPT2 = _Split()
_DIGITS = _Split(digits=True)
_OF_LLAMA3 = _Split(_LLAMA3, ignore_merges=True, adds_bos=True)
_OF_QWEN2 = _Split(_QWEN2, nfc=True)

# tokenizer.ggml.pre -> the split that llama.cpp has for it (llama-vocab.cpp); NFC is of the models' own tokenizers.
_SPLITS: Mapping[str, _Split] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama3": _OF_LLAMA3,
    "llama-v3": _OF_LLAMA3,
    "llama-bpe": _OF_LLAMA3,
    "falcon3": _OF_LLAMA3,
    "pixtral": _OF_LLAMA3,
    "smaug-bpe": _Split(_LLAMA3),
    "dbrx": _Split(_LLAMA3),
    "qwen2": _OF_QWEN2,
    "deepseek-r1-qwen": _OF_QWEN2,
    "glm4": _Split(_LLAMA3),
    "chatglm-bpe": _Split(_LLAMA3),
    "gpt-4o": _Split(_O200K),
    "minimax-m2": _Split(_O200K),
    "tekken": _Split(_TEKKEN, ignore_merges=True, adds_bos=True),
}


def tokenizer_of(path: pathlib.Path) -> Any:
    """Returns the tokenizer of a GGUF file, with its chat template; None if it has none.

    Raises:
        ValueError: a tokenizer or a pre-tokenizer that is not known, or one whose parts are missing or do not fit.
    """
    metadata = read_gguf(path).metadata
    kind = metadata.get("tokenizer.ggml.model", "none")
    if kind in ("none", "no_vocab"):
        return None
    if kind not in _KINDS:
        raise ValueError(f"{path} has a tokenizer of kind {kind!r}; expected one of {', '.join(_KINDS)}")
    entries = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    try:
        _check(entries, ("token_type", "scores") if kind == "llama" else ("token_type",))
        return _wrapped(_KINDS[kind](entries), entries, metadata.get("tokenizer.chat_template"))
    except KeyError as error:
        raise ValueError(f"{path} has no tokenizer.ggml.{error.args[0]}; expected a whole tokenizer") from error
    except (ValueError, IndexError) as error:
        raise ValueError(f"the tokenizer in {path} cannot be read: {error}") from error


def _check(entries: Mapping[str, Any], by_token: Sequence[str]) -> None:
    """Refuses tokens that are not strings, lists without an entry for each token, and ids that no token has."""
    tokens = entries["tokens"]
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ValueError("tokenizer.ggml.tokens is no list of texts; convert the model again")
    for name in by_token:
        value = entries.get(name, tokens)
        if not isinstance(value, list) or len(value) != len(tokens):
            count = len(value) if isinstance(value, list) else type(value).__name__
            raise ValueError(f"tokenizer.ggml.{name} has {count} entries for {len(tokens)} tokens; expected as many")
    for name in (f"{key}_token_id" for key in _SPECIAL.values()):
        value = entries.get(name, 0)
        if not isinstance(value, int) or not 0 <= value < max(len(tokens), 1):
            raise ValueError(f"tokenizer.ggml.{name} is {value!r}; the vocabulary is 0 to {len(tokens) - 1}")


def _wrapped(backend: Any, entries: Mapping[str, Any], template: str | None) -> Any:
    from transformers import PreTrainedTokenizerFast

    special = {
        name: entries["tokens"][entries[f"{key}_token_id"]]
        for name, key in _SPECIAL.items()
        if f"{key}_token_id" in entries
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=template,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )


def _byte_level(entries: Mapping[str, Any]) -> Any:
    """Makes a tokenizer of GPT-2's kind: tokens are written in an alphabet of 256 letters, one for each byte."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    split = _SPLITS.get(str(entries.get("pre")))
    if split is None:
        raise ValueError(f"pre-tokenizer {entries.get('pre')!r} is not known; expected one of {', '.join(_SPLITS)}")
    vocabulary = {token: id for id, token in enumerate(entries["tokens"])}
    merges = [_pair(merge, vocabulary) for merge in entries["merges"]]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split.ignore_merges))
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits else []
    if split.regex is not None:
        steps = [*steps, pre_tokenizers.Split(Regex(split.regex), behavior="isolated")]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.regex is None)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, bytes_])
    backend.decoder = decoders.ByteLevel()
    return _with_added(backend, entries, entries["tokens"], adds_bos=split.adds_bos)


def _sentencepiece(entries: Mapping[str, Any]) -> Any:
    """Makes a tokenizer with SentencePiece's BPE: what is in no token falls apart into bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    # Runs of spaces are tokens of Gemma, which llama.cpp writes as plain spaces.
    tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in entries["tokens"]]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    unknown = entries.get("unknown_token_id")
    if has_merges := entries.get("model") == "gemma4":
        merges = [_pair(merge, vocabulary) for merge in entries["merges"]]
    else:
        merges = _merges(tokens, entries["scores"], entries["token_type"])
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = entries.get("add_space_prefix", not has_merges)
    replace = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefix else replace
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return _with_added(backend, entries, tokens, adds_bos=True)


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "gemma4": _sentencepiece,
}


def _pair(merge: Any, vocabulary: Mapping[str, int]) -> tuple[str, str]:
    left, _, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
    if not {left, right, left + right} <= vocabulary.keys():
        raise ValueError(f"its merge {merge!r} is not of two tokens that make a third; convert the model again")
    return left, right


def _merges(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Returns the pairs of tokens that make a token, best first.

    SentencePiece joins the pair whose token scores highest. Tokens defined by the user have no score of their own and
    go first, in the order of their ids.
    """
    ids = {token: id for id, token in enumerate(tokens)}

    def rank(id: int) -> tuple[float, int]:
        return (-float("inf"), id) if types[id] == _USER_DEFINED else (-scores[id], id)

    merges = []
    for id in sorted(range(len(tokens)), key=rank):
        token = tokens[id]
        parts = ((token[:at], token[at:]) for at in range(1, len(token)))
        mergeable = [pair for pair in parts if pair[0] in ids and pair[1] in ids]
        merges += sorted(mergeable, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _with_added(backend: Any, entries: Mapping[str, Any], tokens: list[str], adds_bos: bool) -> Any:
    """Adds the tokens that text is cut at, and those that are put around it."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    types = entries.get("token_type", [])
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(token, normalized=False, special=special)
            for token, type in zip(tokens, types, strict=False)
            if type == kind
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    around = {
        name: tokens[entries[f"{name}_token_id"]]
        for name, default in (("bos", adds_bos), ("eos", False))
        if entries.get(f"add_{name}_token", default) and f"{name}_token_id" in entries
    }
    if around:
        backend.post_processor = TemplateProcessing(
            single=[part for part in (around.get("bos"), "$A", around.get("eos")) if part],
            special_tokens=[(token, entries[f"{name}_token_id"]) for name, token in around.items()],
        )
    return backend
