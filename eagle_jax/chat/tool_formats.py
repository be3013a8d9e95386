"""Formats of tool calls of model families: a table, and detection by chat template."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A tool call of an answer.

    Attributes:
        name: name of the function.
        arguments: JSON text of an object.
    """

    name: str
    arguments: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """How a family of models writes calls: `begin`, `head`, the arguments, `tail`, `end`.

    White space between and around these texts may differ.

    Attributes:
        name: name of the format in options.
        marks: texts that occur in every chat template of this format.
        begin: text before a call.
        also: alternative to `begin` that is parsed but never generated; "" if there is none.
        end: text after a call, which may be missing after complete arguments; "" if there is none.
        section: texts before the first call and after the last one.
        head: text before the arguments, with `{name}`; "" if calls are JSON objects with a name and arguments, or lists
            of them. If it starts with a tag, `begin` may be missing. With `{index}`, the text up to it is the call's
            id.
        tail: text after the arguments.
        argument: texts before (with `{key}`) and after the value of an argument that is not JSON, whose line breaks
            next to the value do not belong to it; None if the arguments are a JSON object.
        arguments: key of the arguments in JSON objects with a name.
        bare: whether `begin` may be missing at the beginning of an answer and after another call.
        listed: whether several calls are written as one list.
        id_length: length of a call's id, which templates may check.
        channels: whether calls are messages in a channel, which `harmony` parses.
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
        """All texts of the format but those of arguments."""
        return self.begin, self.also, self.end, *self.section, *self.head.split("{name}"), self.tail

    def model_call_id(self, name: str, index: int) -> str | None:
        """Returns the id that the model writes for call number `index` of a conversation; None if it writes none."""
        before, mark, _ = self.head.partition("{index}")
        return f"{before}{mark}".format(name=name, index=index) if mark else None


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CALL: dict[str, Any] = {"begin": "<｜tool▁call▁begin｜>", "end": "<｜tool▁call▁end｜>", "section": _DEEPSEEK}
_TAGGED: dict[str, Any] = {"head": "<function={name}>\n", "tail": "</function>"}
# A template has the first format whose marks it contains, so more specific formats come first.
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
        # the template of Granite 3.1 shows the special token, but the model writes the text
        ToolFormat(name="granite", marks=("<|tool_call|>",), begin="<|tool_call|>", also="<tool_call>", listed=True),
        ToolFormat(name="hermes", marks=("<tool_call>",), begin="<tool_call>\n", end="\n</tool_call>"),
        ToolFormat(
            name="llama3", marks=('"parameters": dict',), begin="<|python_tag|>", arguments="parameters", bare=True
        ),
    )
}


def template_of(tokenizer: Any) -> str:
    """Returns the chat template for conversations with tools; "" if there is none."""
    templates = getattr(tokenizer, "chat_template", None) or ""
    if isinstance(templates, Mapping):
        return templates.get("tool_use") or templates.get("default") or ""
    return templates


def supports_tools(template: str) -> bool:
    """Returns whether a chat template reads tools."""
    return re.search(r"\btools\b", template) is not None


def format_of(template: str) -> ToolFormat | None:
    """Returns the format that a chat template uses; None if it is none of `FORMATS`."""
    return next((format_ for format_ in FORMATS.values() if all(mark in template for mark in format_.marks)), None)


def tool_format_for(tokenizer: Any, stated: ToolFormat | None = None) -> ToolFormat:
    """Returns the format of a model's calls, by its chat template unless `stated`.

    Raises:
        ValueError: the template does not support tools, or its format is none of `FORMATS`.
    """
    template = template_of(tokenizer)
    if not supports_tools(template):
        raise ValueError(
            "the model's chat template does not support tools; leave tools and their results out, or give "
            'tool_choice "none"'
        )
    format = stated or format_of(template)
    if format is None:
        raise ValueError(
            "the format of the model's tool calls is unknown; serve it with --tool-format and one of "
            f"{', '.join(FORMATS)}"
        )
    return format


def call_id(format: ToolFormat, *parts: Any) -> str:
    """Returns an id for a call, derived from `parts`."""
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return digest[: format.id_length] if format.id_length < 24 else f"call_{digest[: format.id_length]}"
