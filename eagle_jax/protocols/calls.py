"""Parses OpenAI's requests.

Unsupported fields that would change the answer, and unknown fields, are rejected. Fields that identify or prioritize a
request are checked and ignored.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.chat.prompts import Chat, Text
from eagle_jax.chat.tools import Tools
from eagle_jax.fields import Fields, anything, flag, listed, mapping, number, text, whole_number, wrong
from eagle_jax.protocols.messages import take_messages
from eagle_jax.protocols.structured import take_form
from eagle_jax.protocols.tools import take_tools
from eagle_jax.requests.processing import Processing, check_processing

MAX_STOPS, MAX_STOP_CHARS = 64, 500
MAX_SEED = 2**63 - 1
MAX_INT32 = 2**31 - 1

# Fields that identify or prioritize a request.
IGNORED = {
    "user": text,
    "safety_identifier": text,
    "prompt_cache_key": text,
    "prompt_cache_retention": text,
    "prompt_cache_options": mapping,
    "metadata": mapping,
    "service_tier": text,
    "store": flag,
    "request_id": text,
    "rid": text,
    "priority": whole_number(-MAX_INT32, MAX_INT32),
}
# Known fields of OpenAI's, vLLM's and SGLang's requests, with the values that have no effect.
NEUTRAL: dict[str, list[Any]] = {
    "length_penalty": [1],
    "use_beam_search": [False],
    "early_stopping": [False],
    "include_stop_str_in_output": [False],
    "skip_special_tokens": [True],
    "spaces_between_special_tokens": [True],
    "truncate_prompt_tokens": [],
    "return_tokens_as_token_ids": [False],
    "return_token_ids": [False],
    "return_hidden_states": [False],
    "guided_grammar": [],
    "ebnf": [],
    "stop_regex": [[]],
    "no_stop_trim": [False],
    "min_new_tokens": [0],
    "logits_processors": [[]],
    "mm_processor_kwargs": [{}],
    "kv_transfer_params": [{}],
    "vllm_xargs": [{}],
    "lora_path": [],
    "session_params": [{}],
}
NEUTRAL_COMPLETION = NEUTRAL | {"suffix": [""]}
NEUTRAL_CHAT = NEUTRAL | {
    "echo": [False],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "modalities": [["text"]],
    "audio": [],
    "prediction": [],
    "web_search_options": [],
    "documents": [[]],
    "add_special_tokens": [False],
    "chat_template": [],
    "stream_reasoning": [True, False],
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One parsed request.

    Attributes:
        model: name of the model; None is the server's first.
        prompts: each a text, a chat or token ids.
        samples: number of answers to each prompt.
        options: options of `Engine.submit_all` that the request sets.
        stream: whether the answers are streamed.
        include_usage: whether a stream ends with the usage.
        continuous_usage: whether each event of a stream has the usage so far.
        reports_steps: whether to report the tokens that every step committed.
        echo: whether the answer begins with the prompt.
        prompt_logprobs: number of top tokens to report at each prompt position, in vLLM's format.
        tools: tools that the answer may call.
        separates_reasoning: whether reasoning is separated from the text.
        includes_reasoning: whether reasoning is returned at all.
        ignored: unknown fields that were ignored.
    """

    model: str | None
    prompts: list[Any]
    samples: int
    options: dict[str, Any]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    reports_steps: bool
    ignored: tuple[str, ...]
    echo: bool = False
    prompt_logprobs: int | None = None
    tools: Tools | None = None
    separates_reasoning: bool = True
    includes_reasoning: bool = True

    @property
    def generates_answer(self) -> bool:
        """Whether an answer is generated; otherwise only the prompt is scored."""
        return self.options.get("max_new_tokens") != 0

    @property
    def prompt_top_logprobs(self) -> int | None:
        """Number of top tokens needed at each prompt position; None if prompts are not scored."""
        echoed = self.options["top_logprobs"] if self.echo and self.options["logprobs"] else None
        counts = [top for top in (echoed, self.prompt_logprobs) if top is not None]
        return max(counts, default=None if self.generates_answer else 0)


def completion_call(body: Mapping[str, Any], ignore_unknown: bool = False) -> Call:
    """Parses a request to /v1/completions. Raises `FieldError`."""
    fields = Fields(body, ignore_unknown=ignore_unknown)
    special_tokens = fields.take("add_special_tokens", flag, True)
    prompts = [
        Text(prompt, special_tokens) if isinstance(prompt, str) else prompt
        for prompt in _prompts(fields.require("prompt", anything))
    ]
    samples = fields.take("n", whole_number(1, MAX_INT32), 1)
    echo, prompt_logprobs = fields.take("echo", flag, False), fields.take("prompt_logprobs", whole_number(0, 20), None)
    minimum = 0 if echo or prompt_logprobs is not None else 1
    options = _options(fields) | {
        **_max_tokens(fields, minimum),
        "logprobs": (top := fields.take("logprobs", whole_number(0, 20), None)) is not None,
        "top_logprobs": top or 0,
    }
    fields.only(NEUTRAL_COMPLETION | {"best_of": [samples]})
    return _call(fields, prompts, samples, options, echo=echo, prompt_logprobs=prompt_logprobs)


def chat_call(body: Mapping[str, Any], ignore_unknown: bool = False) -> Call:
    """Parses a request to /v1/chat/completions. Raises `FieldError`."""
    fields = Fields(body, ignore_unknown=ignore_unknown)
    chat, tools = take_chat(fields, take_messages(fields))
    samples = fields.take("n", whole_number(1, MAX_INT32), 1)
    options = _options(fields) | {
        **_max_tokens(fields, 1),
        "logprobs": fields.take("logprobs", flag, False),
        "top_logprobs": fields.take("top_logprobs", whole_number(0, 20), 0),
    }
    if options["top_logprobs"] and not options["logprobs"]:
        raise wrong("top_logprobs", "top_logprobs without logprobs=true; give both or none")
    extra: dict[str, Any] = dict(
        prompt_logprobs=fields.take("prompt_logprobs", whole_number(0, 20), None),
        tools=tools,
        separates_reasoning=fields.take("separate_reasoning", flag, True),
        includes_reasoning=fields.take("include_reasoning", flag, True),
    )
    fields.only(NEUTRAL_CHAT)
    return _call(fields, [chat], samples, options, **extra)


def take_chat(fields: Fields, messages: list[dict[str, Any]]) -> tuple[Chat, Tools | None]:
    """Returns the conversation of a request with its template variables, and its tools."""
    empty: dict[str, Any] = {}
    tools, template = take_tools(fields), fields.take("chat_template_kwargs", mapping, empty)
    # chat templates of reasoning models read these variables
    thinking = _if_set("reasoning_effort", fields.take("reasoning_effort", text, None))
    disabled = {"enable_thinking": False} if thinking.get("reasoning_effort") == "none" else {}
    thinking |= disabled | _if_set("enable_thinking", fields.take("enable_thinking", flag, None))
    for name in ("enable_thinking", "thinking"):  # to a template the text "false" is true
        if template.get(name) is not None:
            flag(f"chat_template_kwargs.{name}", template[name])
    fields.ignore({"verbosity": text})
    continues_message = bool(messages[-1].pop("prefix", False))  # sent by Mistral's and DeepSeek's clients
    chat = Chat(
        messages=messages,
        template=thinking | template | ({"tools": tools.tools} if tools else {}),
        add_generation_prompt=fields.take("add_generation_prompt", flag, True),
        continue_final_message=fields.take("continue_final_message", flag, continues_message),
    )
    return chat, tools


def _options(fields: Fields) -> dict[str, Any]:
    """Returns the sampling options that the request sets."""
    form = take_form(fields)
    processing = {name: fields.take(name, _processing, None) for name in Processing.__annotations__} | form
    top_k = fields.take("top_k", whole_number(-1, MAX_INT32), None)
    options = processing | {
        "temperature": fields.take("temperature", number(0.0, 2.0), None),
        "top_p": fields.take("top_p", _top_p, None),
        "top_k": None if top_k is None else max(top_k, 0),  # vLLM's -1 is "all", as 0 is
        "min_p": fields.take("min_p", number(0.0, 1.0), None),
        "seed": fields.take("seed", whole_number(0, MAX_SEED), None),
        "stop": fields.take("stop", _stop, None),
        "cache_salt": fields.take("cache_salt", text, None),
    }
    return {name: value for name, value in options.items() if value is not None}


def _call(fields: Fields, prompts: list[Any], samples: int, options: dict[str, Any], **extra: Any) -> Call:
    stream = fields.take("stream", flag, False)
    stream_options = fields.take("stream_options", mapping, None)
    if stream_options is not None and not stream:
        raise wrong("stream_options", "stream_options without stream=true; leave them out")
    stream_fields = fields.inside("stream_options", stream_options or {})
    include_usage = stream_fields.take("include_usage", flag, False)
    continuous_usage = stream_fields.take("continuous_usage_stats", flag, False)
    stream_fields.ignore({"include_obfuscation": flag})
    call = Call(
        model=fields.take("model", text, None),
        prompts=prompts,
        samples=samples,
        options=options,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and continuous_usage,  # as vLLM has it
        reports_steps=fields.take("eagle", flag, False),
        ignored=(),
        **extra,
    )
    if call.stream and call.prompt_logprobs is not None:
        raise wrong("prompt_logprobs", "prompt_logprobs with stream=true; leave one of them out")
    fields.ignore(IGNORED)
    return dataclasses.replace(call, ignored=tuple(fields.end()))


def _max_tokens(fields: Fields, minimum: int) -> dict[str, Any]:
    """Returns the maximum answer length, under either of its names."""
    max_tokens, max_completion_tokens = (
        fields.take(name, whole_number(minimum, MAX_INT32), None) for name in ("max_tokens", "max_completion_tokens")
    )
    if max_tokens is not None and max_completion_tokens is not None and max_tokens != max_completion_tokens:
        raise wrong(
            "max_tokens",
            f"max_tokens={max_tokens} with max_completion_tokens={max_completion_tokens}; give one of them",
        )
    return _if_set("max_new_tokens", max_completion_tokens if max_tokens is None else max_tokens)


def _if_set(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {name: value}


def _prompts(value: Any) -> list[Any]:
    """Returns the list of prompts in the field `prompt`."""
    if isinstance(value, str):
        return [value]
    items = listed("prompt", value)
    if all(_is_token(item) for item in items):
        return [items]
    if all(isinstance(item, str) for item in items):
        return items
    if all(isinstance(item, list) and item and all(_is_token(token) for token in item) for item in items):
        return items
    raise wrong("prompt", "prompt is neither text nor token ids nor a list of either; give one of them")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT32


def _stop(name: str, value: Any) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if (
        not isinstance(strings, list)
        or len(strings) > MAX_STOPS
        or not all(isinstance(string, str) and 0 < len(string) <= MAX_STOP_CHARS for string in strings)
    ):
        raise wrong(
            name, f"{name} must be a text or a list of at most {MAX_STOPS}, each of 1 to {MAX_STOP_CHARS} characters"
        )
    return strings


def _processing(name: str, value: Any) -> Any:
    try:
        check_processing({name: value})
        return value
    except ValueError as error:
        raise wrong(name, str(error)) from None


def _top_p(name: str, value: Any) -> float:
    top_p = number(0.0, 1.0)(name, value)
    if top_p == 0:
        raise wrong(name, f"{name}=0 keeps no token; expected a number above 0, where 1 keeps every token")
    return top_p
