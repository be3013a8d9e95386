"""Calls of functions in answers: how families of models write them, and how they are read as the text comes."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from eagle_jax.text.detokenize import settled
from eagle_jax.text.json_end import JsonEnd


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A function that an answer calls.

    Attributes:
        name: the function's.
        arguments: a JSON object, as text.
    """

    name: str
    arguments: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """How a family of models writes calls: JSON objects with a name and arguments, or lists of them.

    Attributes:
        name: what options call it.
        mark: text in chat templates of this format.
        begin: text that stands before a call.
        end: text that stands behind it; "" for none.
        arguments: the key of the arguments.
        bare: whether calls stand without `begin` too: where an answer begins, or behind another call.
        listed: whether several calls stand in one list.
        id_length: characters of a call's id, which the templates may check.
    """

    name: str
    mark: str
    begin: str
    end: str = ""
    arguments: str = "arguments"
    bare: bool = False
    listed: bool = False
    id_length: int = 24


FORMATS = {
    one.name: one
    for one in (
        ToolFormat(name="mistral", mark="[TOOL_CALLS]", begin="[TOOL_CALLS]", listed=True, id_length=9),
        ToolFormat(name="hermes", mark="<tool_call>", begin="<tool_call>", end="</tool_call>"),
        ToolFormat(name="llama3", mark='"parameters": dict', begin="<|python_tag|>", arguments="parameters", bare=True),
    )
}
# Formats that share a mark with one of these and write calls in another way: Mistral's later one, Qwen3-Coder's, GLM's.
OTHERS = ("[ARGS]", "<function=", "<arg_key>")


def template_of(tokenizer: Any) -> str:
    """The chat template that conversations with tools go through; "" if there is none."""
    templates = getattr(tokenizer, "chat_template", None) or ""
    if isinstance(templates, Mapping):
        return templates.get("tool_use") or templates.get("default") or ""
    return templates


def knows_tools(template: str) -> bool:
    """Whether a chat template reads tools."""
    return re.search(r"\btools\b", template) is not None


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; None if it is none of `FORMATS`."""
    if any(other in template for other in OTHERS):
        return None
    return next((one for one in FORMATS.values() if one.mark in template), None)


def tool_format_for(tokenizer: Any, stated: ToolFormat | None = None) -> ToolFormat:
    """The format of a model's calls: the one of its chat template, or another that is stated.

    Raises:
        ValueError: the template knows no tools, or its format is none of `FORMATS`.
    """
    template = template_of(tokenizer)
    if not knows_tools(template):
        raise ValueError(
            'the model\'s chat template knows no tools; leave tools and what they said out, or give tool_choice "none"'
        )
    format = stated or format_of(template)
    if format is None:
        names = " or ".join(FORMATS)
        raise ValueError(
            f"the model writes calls in a form that is not known here; serve it with --tool-format {names}"
        )
    return format


def call_id(format: ToolFormat, *what: Any) -> str:
    """An id of letters and digits for a call; the same for the same `what`."""
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    return digest[: format.id_length] if format.id_length < 24 else f"call_{digest[: format.id_length]}"


class CallReader:
    """Reads an answer as it comes: what is text, and what is a call.

    Text that may turn out to begin a call is held back, a call until it is complete. What looks like a call and is none
    (broken JSON, a function that nobody offered) is text. White space before a call, and behind the last one, is
    dropped.

    Args:
        format: how the model writes calls.
        names: the functions that there are.
        parallel: whether more calls than the first count; else they are dropped.

    Attributes:
        calls: that were read so far.
    """

    def __init__(self, format: ToolFormat, names: Collection[str], parallel: bool = True):
        self._format, self._names, self._parallel = format, names, parallel
        self.calls: list[ToolCall] = []
        self._text, self._space = "", ""  # what is not told yet, and white space before it
        self._only_calls = True  # so far: where a call may stand bare
        self._begun: _Begun | None = None  # the call that the text begins with

    def add(self, text: str) -> list[str | ToolCall]:
        """What is certain with more of the text."""
        self._text += text
        return self._pieces(is_last=False)

    def end(self) -> list[str | ToolCall]:
        """What is left when the answer is complete."""
        if self.calls and self._format.end.startswith(self._text.strip()):
            self._text = ""  # the mark behind a call, cut short
        pieces = self._pieces(is_last=True)
        return pieces if self.calls or not self._space else [*pieces, self._space]

    def _pieces(self, is_last: bool) -> list[str | ToolCall]:
        pieces: list[str | ToolCall] = []
        while self._text:
            if self._begun is None and not self._up_to_call(pieces, is_last):
                break
            size, calls = self._call(is_last)
            if size == 0 and not is_last:
                break
            size, self._begun = size or len(self._text), None
            pieces += self._called(calls) if calls else self._told(self._text[:size])
            self._text = self._text[size:]
        return pieces

    def _up_to_call(self, pieces: list[str | ToolCall], is_last: bool) -> bool:
        """Takes the text before what may be a call, as far as it is certain; whether there is one."""
        bare = self._bare()
        if bare == len(self._text) and not is_last:
            return False
        begin = self._text.find(self._format.begin)
        if bare is not None and self._text[bare : bare + 1] == "{":
            begin = bare
        if begin < 0:
            certain = self._text if is_last else settled(self._text, [self._format.begin])
            pieces += self._told(certain)
            self._text = self._text[len(certain) :]
            return False
        pieces += [] if begin == bare and self.calls else self._told(self._text[:begin])
        self._text = self._text[begin:]
        return True

    def _bare(self) -> int | None:
        """Where a call may stand bare, behind white space or what parts it from the one before; None if nowhere."""
        if not self._format.bare or not self._only_calls:
            return None
        return len(self._text) - len(self._text.lstrip("; \n\t" if self.calls else " \n\t"))

    def _call(self, is_last: bool) -> tuple[int, list[ToolCall]]:
        """Characters of the call that the text begins with, 0 if it is not complete; what it calls, if it is one."""
        text, end = self._text, self._format.end
        if self._begun is None:
            at = len(self._format.begin) if text.startswith(self._format.begin) else 0
            at += len(text[at:]) - len(text[at:].lstrip())
            if at == len(text):
                return 0, []
            if text[at] not in "{[":
                return at, []
            self._begun = _Begun(at, JsonEnd(at))
        stop = self._begun.json.read(text)
        if stop is None:
            return 0, []
        calls = self._begun.calls_in(text[:stop], self._format, self._names)
        behind = text[stop:].lstrip()
        if calls and end and behind.startswith(end):
            return len(text) - len(behind) + len(end), calls
        if calls and end.startswith(behind) and end != behind and not is_last:
            return 0, []
        return stop, calls

    def _called(self, calls: list[ToolCall]) -> list[str | ToolCall]:
        kept = calls if self._parallel else calls[: 1 - len(self.calls)]
        self.calls += kept
        self._space = ""
        return [*kept]

    def _told(self, text: str) -> list[str | ToolCall]:
        """Text, without white space at its end, which waits for what follows."""
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        self._only_calls = self._only_calls and not kept
        return [kept] if kept else []


@dataclasses.dataclass
class _Begun:
    """What may be a call: where its JSON begins, and what is known of it."""

    at: int
    json: JsonEnd
    calls: list[ToolCall] | None = None  # once the JSON is complete

    def calls_in(self, text: str, format: ToolFormat, names: Collection[str]) -> list[ToolCall]:
        """The calls in the JSON that ends the text."""
        if self.calls is None:
            self.calls = _calls_in(text[self.at :], format, names)
        return self.calls


def _calls_in(text: str, format: ToolFormat, names: Collection[str]) -> list[ToolCall]:
    """The calls in a JSON object, or in a list of them; none if one of them is none."""
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return []
    entries = value if isinstance(value, list) else [value]
    calls = [_call_of(entry, format, names) for entry in entries]
    return [call for call in calls if call is not None] if None not in calls else []


def _call_of(entry: Any, format: ToolFormat, names: Collection[str]) -> ToolCall | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or entry["name"] not in names:
        return None
    arguments = entry.get(format.arguments, entry.get("arguments"))
    if isinstance(arguments, str):  # some write the object as text once more
        try:
            arguments = json.loads(arguments, parse_constant=_no_number)
        except (ValueError, RecursionError):
            return None
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        return None
    return ToolCall(entry["name"], json.dumps(arguments, ensure_ascii=False))


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
