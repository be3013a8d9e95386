"""What OpenAI's requests ask of an engine.

Fields that would change the answer and are not supported are refused, and so are unknown ones: an answer to another
question than the one that was asked helps nobody. Fields that say who asks and why are checked and ignored.
"""

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any

from eagle_jax.serving.fields import Fields, flag, listed, mapping, number, text, whole, wrong

MOST_STOPS, LONGEST_STOP = 4, 500
MOST_CHOICES = 128
LARGEST_SEED = 2**63 - 1
LARGEST = 2**31 - 1

IGNORED = {"user": text, "safety_identifier": text, "prompt_cache_key": text, "metadata": mapping}
# Known fields, and the values of them that change nothing.
NEUTRAL: dict[str, list[Any]] = {
    "frequency_penalty": [0],
    "presence_penalty": [0],
    "logit_bias": [{}],
    "store": [False],
    "service_tier": ["auto", "default"],
}
NEUTRAL_COMPLETION = NEUTRAL | {"echo": [False], "suffix": [""]}
NEUTRAL_CHAT = NEUTRAL | {
    "top_logprobs": [0],
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "parallel_tool_calls": [True, False],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "response_format": [{"type": "text"}],
    "modalities": [["text"]],
    "audio": [],
    "prediction": [],
    "reasoning_effort": [],
    "verbosity": [],
    "web_search_options": [],
}
NEUTRAL_MESSAGE: dict[str, list[Any]] = {
    "name": [],
    "refusal": [],
    "audio": [],
    "annotations": [[]],
    "tool_calls": [[]],
    "function_call": [],
}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One request.

    Attributes:
        model: which of the server's models; None is the first.
        prompts: text, chat messages or token ids, one or several.
        samples: answers to each prompt.
        options: of `Engine.submit_all`.
        stream: whether the answers are sent as they are made.
        include_usage: whether a stream ends with what was used.
        eagle: whether to tell what every pass of the target committed.
    """

    model: str | None
    prompts: list[Any]
    samples: int
    options: dict[str, Any]
    stream: bool
    include_usage: bool
    eagle: bool


def completion_call(body: Mapping[str, Any]) -> Call:
    """A request to /v1/completions. Raises `Refused`."""
    fields = Fields(body)
    prompts = _prompts(fields.must("prompt", lambda name, value: value))
    samples = fields.take("n", whole(1, MOST_CHOICES), 1)
    options = _options(fields) | {
        "max_new_tokens": fields.take("max_tokens", whole(1, LARGEST), 16),
        "logprobs": fields.take("logprobs", _own_logprobs, False),
    }
    fields.only(NEUTRAL_COMPLETION | {"best_of": [samples]})
    return _call(fields, prompts, samples, options)


def chat_call(body: Mapping[str, Any]) -> Call:
    """A request to /v1/chat/completions. Raises `Refused`."""
    fields = Fields(body)
    messages = [_message(i, entry) for i, entry in enumerate(fields.must("messages", listed))]
    samples = fields.take("n", whole(1, MOST_CHOICES), 1)
    old, new = (fields.take(name, whole(1, LARGEST), None) for name in ("max_tokens", "max_completion_tokens"))
    if old is not None and new is not None and old != new:
        raise wrong("max_tokens", f"max_tokens={old} beside max_completion_tokens={new}; give one of them")
    options = _options(fields) | {
        "max_new_tokens": new if old is None else old,
        "logprobs": fields.take("logprobs", flag, False),
    }
    fields.only(NEUTRAL_CHAT)
    return _call(fields, [messages], samples, options)


def _options(fields: Fields) -> dict[str, Any]:
    """How tokens are drawn. OpenAI's defaults: temperature 1, and another seed every time."""
    return {
        "temperature": fields.take("temperature", number(0.0, 2.0), 1.0),
        "top_p": fields.take("top_p", _share, 1.0),
        "top_k": max(fields.take("top_k", whole(-1, LARGEST), 0), 0),  # vLLM's -1 is "all", as 0 is
        "min_p": fields.take("min_p", number(0.0, 1.0), 0.0),
        "seed": fields.take("seed", whole(0, LARGEST_SEED), secrets.randbelow(LARGEST_SEED)),
        "stop": fields.take("stop", _stop, None),
    }


def _call(fields: Fields, prompts: list[Any], samples: int, options: dict[str, Any]) -> Call:
    stream = fields.take("stream", flag, False)
    entry = fields.take("stream_options", mapping, None)
    if entry is not None and not stream:
        raise wrong("stream_options", "stream_options without stream=true; leave them out")
    streaming = Fields(entry or {}, "stream_options.")
    include_usage = streaming.take("include_usage", flag, False)
    streaming.ignore({"include_obfuscation": flag})
    streaming.end()
    call = Call(
        model=fields.take("model", text, None),
        prompts=prompts,
        samples=samples,
        options=options,
        stream=stream,
        include_usage=include_usage,
        eagle=fields.take("eagle", flag, False),
    )
    fields.ignore(IGNORED)
    fields.end()
    return call


def _prompts(value: Any) -> list[Any]:
    """Text, token ids, or a list of either."""
    if isinstance(value, str):
        return [value]
    items = listed("prompt", value)
    if all(_is_token(item) for item in items):
        return [items]
    if all(isinstance(item, str) for item in items):
        return items
    if all(isinstance(item, list) and item and all(_is_token(token) for token in item) for item in items):
        return items
    raise wrong("prompt", "prompt is neither text nor token ids, nor a list of one of them")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _message(index: int, value: Any) -> dict[str, str]:
    where = f"messages[{index}]"
    fields = Fields(mapping(where, value), f"{where}.")
    role = fields.must("role", text)
    if role not in ROLES:
        raise wrong(f"{where}.role", f"{where}.role={role[:40]!r}; expected one of {', '.join(ROLES)}")
    content = fields.must("content", _content)
    fields.only(NEUTRAL_MESSAGE)
    fields.end()
    return {"role": ROLES[role], "content": content}


def _content(name: str, value: Any) -> str:
    """Text, or OpenAI's list of parts, of which only text can be read here."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong(name, f"{name} is neither text nor a list of parts with text")
    parts = []
    for i, part in enumerate(value):
        fields = Fields(mapping(f"{name}[{i}]", part), f"{name}[{i}].")
        kind = fields.must("type", text)
        if kind != "text":
            raise wrong(f"{name}[{i}].type", f"{name}[{i}].type={kind[:40]!r}; this model reads text only")
        parts.append(fields.must("text", text))
        fields.end()
    return "".join(parts)


def _stop(name: str, value: Any) -> list[str]:
    several = [value] if isinstance(value, str) else [] if value == [] else listed(name, value)
    if len(several) > MOST_STOPS or not all(isinstance(s, str) and 0 < len(s) <= LONGEST_STOP for s in several):
        raise wrong(
            name, f"{name} has to be a text or {MOST_STOPS} texts at most, each of 1 to {LONGEST_STOP} characters"
        )
    return several


def _share(name: str, value: Any) -> float:
    share = number(0.0, 1.0)(name, value)
    if share == 0:
        raise wrong(name, f"{name}=0 keeps no token; 1 keeps every token")
    return share


def _own_logprobs(name: str, value: Any) -> bool:
    """Of the answer's own tokens only, which is 0 others beside each."""
    if whole(0, 5)(name, value) > 0:
        raise wrong(name, f"{name}={value}; only the answer's own tokens have log-probabilities here, so expected 0")
    return True
