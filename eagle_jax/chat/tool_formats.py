"""How families of models write calls of functions: a table, and which row a chat template teaches."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any


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
    """How a family of models writes calls: `begin`, `head`, the arguments, `tail`, `end`.

    White space between these texts, and at their edges, may be missing or more.

    Attributes:
        name: what options call it.
        marks: texts that chat templates of this format have, all of them.
        begin: text before a call.
        also: another one that some models of the family write, which is read and not written; "" for none.
        end: text after it; "" for none. A call without it counts if its arguments are complete.
        section: texts before the first call and after the last one.
        head: text before the arguments, with `{name}`; "" if calls are JSON objects with a name and arguments, or lists
            of them. A tag begins a call without `begin`
            too. What stands with `{index}` is the call's id, which counts calls.
        tail: text after the arguments.
        argument: texts before and after the value of an argument that is not in JSON, the first with `{key}`; None if
            the arguments are a JSON object. Line breaks that these have next to the value are no part of it.
        arguments: the key of the arguments in JSON objects with a name.
        bare: whether calls stand without `begin` too: where an answer begins, or after another call.
        listed: whether several calls stand in one list.
        id_length: characters of a call's id, which the templates may check.
        channels: whether calls are messages of a channel, which `harmony` reads.
    """

    name: str
    marks: tuple[str, ...]
    begin: str = ""
    also: str = ""
    end: str = ""
    section: tuple[str, str] = ("", "")
    head: str = ""
    tail: str = ""
    argument: tuple[str, str] | None = None
    arguments: str = "arguments"
    bare: bool = False
    listed: bool = False
    id_length: int = 24
    channels: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that it is written with, but for those of arguments."""
        return self.begin, self.also, self.end, *self.section, *self.head.split("{name}"), self.tail

    def model_call_id(self, name: str, index: int) -> str | None:
        """Returns the id that the model writes with call number `index` of a conversation; None if it writes none."""
        before, mark, _ = self.head.partition("{index}")
        return f"{before}{mark}".format(name=name, index=index) if mark else None


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CALL: dict[str, Any] = {"begin": "<｜tool▁call▁begin｜>", "end": "<｜tool▁call▁end｜>", "section": _DEEPSEEK}
_TAGGED: dict[str, Any] = {"head": "<function={name}>\n", "tail": "</function>"}
# The first row whose marks a template has is its format, so those that share a mark with another come before it.
FORMATS = {
    one.name: one
    for one in (
        ToolFormat(
            name="harmony",
            marks=("<|channel|>", "<|message|>"),
            head="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
            channels=True,
        ),
        ToolFormat(
            name="mistral-args",
            marks=("[TOOL_CALLS]", "[ARGS]"),
            begin="[TOOL_CALLS]",
            head="{name}[ARGS]",
            id_length=9,
        ),
        ToolFormat(name="mistral", marks=("[TOOL_CALLS]",), begin="[TOOL_CALLS]", listed=True, id_length=9),
        ToolFormat(
            name="deepseek-v3",
            marks=(*_DEEPSEEK, "```json"),
            head="function<｜tool▁sep｜>{name}\n```json\n",
            tail="\n```",
            **_DEEPSEEK_CALL,
        ),
        ToolFormat(name="deepseek-v3.1", marks=_DEEPSEEK, head="{name}<｜tool▁sep｜>", **_DEEPSEEK_CALL),
        ToolFormat(
            name="kimi-k2",
            marks=("<|tool_calls_section_begin|>",),
            section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            begin="<|tool_call_begin|>",
            head="functions.{name}:{index}<|tool_call_argument_begin|>",
            end="<|tool_call_end|>",
        ),
        ToolFormat(
            name="minimax-m2",
            marks=("<minimax:tool_call>",),
            section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
            begin="<invoke name=",
            head='"{name}">\n',
            argument=('<parameter name="{key}">', "</parameter>\n"),
            tail="</invoke>\n",
        ),
        ToolFormat(
            name="seed-oss",
            marks=("<seed:tool_call>",),
            begin="<seed:tool_call>\n",
            end="\n</seed:tool_call>",
            argument=("<parameter={key}>", "</parameter>\n"),
            **_TAGGED,
        ),
        ToolFormat(
            name="qwen3-coder",
            marks=("<function=", "<parameter="),
            begin="<tool_call>\n",
            end="\n</tool_call>",
            argument=("<parameter={key}>\n", "\n</parameter>\n"),
            **_TAGGED,
        ),
        ToolFormat(
            name="glm4",
            marks=("<arg_key>",),
            begin="<tool_call>",
            head="{name}\n",
            argument=("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n"),
            end="</tool_call>",
        ),
        ToolFormat(name="hunyuan", marks=("<tool_calls>",), begin="<tool_calls>", end="</tool_calls>", listed=True),
        ToolFormat(
            name="granite", marks=("<|tool_call|>",), begin="<|tool_call|>", also="<tool_call>", listed=True
        ),  # 3.1's template teaches the token, and the model writes the text
        ToolFormat(name="hermes", marks=("<tool_call>",), begin="<tool_call>\n", end="\n</tool_call>"),
        ToolFormat(
            name="llama3", marks=('"parameters": dict',), begin="<|python_tag|>", arguments="parameters", bare=True
        ),
    )
}


def template_of(tokenizer: Any) -> str:
    """Returns the chat template that conversations with tools go through; "" if there is none."""
    templates = getattr(tokenizer, "chat_template", None) or ""
    if isinstance(templates, Mapping):
        return templates.get("tool_use") or templates.get("default") or ""
    return templates


def knows_tools(template: str) -> bool:
    """Returns whether a chat template reads tools."""
    return re.search(r"\btools\b", template) is not None


def format_of(template: str) -> ToolFormat | None:
    """Returns the format that a chat template teaches; None if it is none of `FORMATS`."""
    return next((one for one in FORMATS.values() if all(mark in template for mark in one.marks)), None)


def tool_format_for(tokenizer: Any, stated: ToolFormat | None = None) -> ToolFormat:
    """Returns the format of a model's calls: the one of its chat template, or another that is stated.

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
        raise ValueError(
            "the model writes calls in a form that is not known here; serve it with --tool-format and one of "
            f"{', '.join(FORMATS)}"
        )
    return format


def call_id(format: ToolFormat, *what: Any) -> str:
    """Returns an id of letters and digits for a call; the same for the same `what`."""
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    return digest[: format.id_length] if format.id_length < 24 else f"call_{digest[: format.id_length]}"
