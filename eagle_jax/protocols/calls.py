"""What OpenAI's requests ask for.

Fields that would change the answer and are not supported are refused, and so are unknown ones: an answer to another
question than the one that was asked helps nobody. Fields that say who asks and why are checked and ignored.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.chat.prompts import Chat, Text
from eagle_jax.chat.tools import Tools
from eagle_jax.fields import Fields, anything, flag, listed, mapping, number, text, whole_number, wrong
from eagle_jax.protocols.messages import messages_of
from eagle_jax.protocols.structured import take_form
from eagle_jax.protocols.tools import tools_of
from eagle_jax.requests.processing import Processing, check_processing

MAX_STOPS, LONGEST_STOP = 64, 500
LARGEST_SEED = 2**63 - 1
LARGEST = 2**31 - 1

# Fields that say who asks, why and how urgently.
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
    "priority": whole_number(-LARGEST, LARGEST),
}
# Known fields of OpenAI's, vLLM's and SGLang's requests, and the values of them that change nothing.
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
    """One request.

    Attributes:
        model: which of the server's models; None is the first.
        prompts: text, chat messages or token ids, one or several.
        samples: answers to each prompt.
        options: options of `Engine.submit_all`, as far as they are stated.
        stream: whether the answers are sent as they are made.
        include_usage: whether a stream ends with what was used.
        continuous_usage: whether each of its events says what was used so far.
        reports_steps: whether to report what every step committed.
        echo: whether the answer begins with the prompt.
        prompt_logprobs: how many likely tokens to report at each position of the prompt, in vLLM's form.
        tools: functions that the answer may call.
        separates_reasoning: whether reasoning is separated from the text.
        includes_reasoning: whether it is returned at all.
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
    def is_answered(self) -> bool:
        """Whether there is to be an answer; else only the prompt's own tokens matter."""
        return self.options.get("max_new_tokens") != 0

    @property
    def scored(self) -> int | None:
        """How many of the likeliest tokens to find at each position of the prompt; None if prompts are not scored."""
        echoed = self.options["top_logprobs"] if self.echo and self.options["logprobs"] else None
        counts = [top for top in (echoed, self.prompt_logprobs) if top is not None]
        return max(counts, default=None if self.is_answered else 0)


def completion_call(body: Mapping[str, Any], ignore_unknown: bool = False) -> Call:
    """Parses a request to /v1/completions. Raises `FieldError`."""
    fields = Fields(body, ignore_unknown=ignore_unknown)
    special_tokens = fields.take("add_special_tokens", flag, True)
    prompts = [
        Text(prompt, special_tokens) if isinstance(prompt, str) else prompt
        for prompt in _prompts(fields.require("prompt", anything))
    ]
    samples = fields.take("n", whole_number(1, LARGEST), 1)
    echo, prompt_logprobs = fields.take("echo", flag, False), fields.take("prompt_logprobs", whole_number(0, 20), None)
    minimum = 0 if echo or prompt_logprobs is not None else 1
    options = _options(fields) | {
        **_longest(fields, minimum),
        "logprobs": (top := fields.take("logprobs", whole_number(0, 20), None)) is not None,
        "top_logprobs": top or 0,
    }
    fields.only(NEUTRAL_COMPLETION | {"best_of": [samples]})
    return _call(fields, prompts, samples, options, echo=echo, prompt_logprobs=prompt_logprobs)


def chat_call(body: Mapping[str, Any], ignore_unknown: bool = False) -> Call:
    """Parses a request to /v1/chat/completions. Raises `FieldError`."""
    fields = Fields(body, ignore_unknown=ignore_unknown)
    chat, tools = chat_of(fields, messages_of(fields))
    samples = fields.take("n", whole_number(1, LARGEST), 1)
    options = _options(fields) | {
        **_longest(fields, 1),
        "logprobs": fields.take("logprobs", flag, False),
        "top_logprobs": fields.take("top_logprobs", whole_number(0, 20), 0),
    }
    if options["top_logprobs"] and not options["logprobs"]:
        raise wrong("top_logprobs", "top_logprobs without logprobs=true; give both or none")
    more: dict[str, Any] = dict(
        prompt_logprobs=fields.take("prompt_logprobs", whole_number(0, 20), None),
        tools=tools,
        separates_reasoning=fields.take("separate_reasoning", flag, True),
        includes_reasoning=fields.take("include_reasoning", flag, True),
    )
    fields.only(NEUTRAL_CHAT)
    return _call(fields, [chat], samples, options, **more)


def chat_of(fields: Fields, messages: list[dict[str, Any]]) -> tuple[Chat, Tools | None]:
    """Returns the conversation of a request, how it is put into the model's template, and the functions it may call."""
    empty: dict[str, Any] = {}
    tools, template = tools_of(fields), fields.take("chat_template_kwargs", mapping, empty)
    # templates of models that think more or less read these
    effort = _stated("reasoning_effort", fields.take("reasoning_effort", text, None))
    off = {"enable_thinking": False} if effort.get("reasoning_effort") == "none" else {}
    effort |= off | _stated("enable_thinking", fields.take("enable_thinking", flag, None))
    for name in ("enable_thinking", "thinking"):  # a template takes the text "false" for true
        if template.get(name) is not None:
            flag(f"chat_template_kwargs.{name}", template[name])
    fields.ignore({"verbosity": text})
    is_begun = bool(messages[-1].pop("prefix", False))  # as Mistral's and DeepSeek's clients say it
    chat = Chat(
        messages=messages,
        template=effort | template | ({"tools": tools.tools} if tools else {}),
        add_generation_prompt=fields.take("add_generation_prompt", flag, True),
        continue_final_message=fields.take("continue_final_message", flag, is_begun),
    )
    return chat, tools


def _options(fields: Fields) -> dict[str, Any]:
    """Returns how tokens are drawn, as far as it is stated."""
    form = take_form(fields)
    processing = {name: fields.take(name, _processing, None) for name in Processing.__annotations__} | form
    top_k = fields.take("top_k", whole_number(-1, LARGEST), None)
    options = processing | {
        "temperature": fields.take("temperature", number(0.0, 2.0), None),
        "top_p": fields.take("top_p", _share, None),
        "top_k": None if top_k is None else max(top_k, 0),  # vLLM's -1 is "all", as 0 is
        "min_p": fields.take("min_p", number(0.0, 1.0), None),
        "seed": fields.take("seed", whole_number(0, LARGEST_SEED), None),
        "stop": fields.take("stop", _stop, None),
        "cache_salt": fields.take("cache_salt", text, None),
    }
    return {name: value for name, value in options.items() if value is not None}


def _call(fields: Fields, prompts: list[Any], samples: int, options: dict[str, Any], **more: Any) -> Call:
    stream = fields.take("stream", flag, False)
    entry = fields.take("stream_options", mapping, None)
    if entry is not None and not stream:
        raise wrong("stream_options", "stream_options without stream=true; leave them out")
    streaming = fields.inside("stream_options", entry or {})
    include_usage = streaming.take("include_usage", flag, False)
    continuous_usage = streaming.take("continuous_usage_stats", flag, False)
    streaming.ignore({"include_obfuscation": flag})
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
        **more,
    )
    if call.stream and call.prompt_logprobs is not None:
        raise wrong("prompt_logprobs", "prompt_logprobs beside stream=true; leave one of them out")
    fields.ignore(IGNORED)
    return dataclasses.replace(call, ignored=tuple(fields.end()))


def _longest(fields: Fields, minimum: int) -> dict[str, Any]:
    """Returns the longest answer, under either of its names."""
    old, new = (
        fields.take(name, whole_number(minimum, LARGEST), None) for name in ("max_tokens", "max_completion_tokens")
    )
    if old is not None and new is not None and old != new:
        raise wrong("max_tokens", f"max_tokens={old} beside max_completion_tokens={new}; give one of them")
    return _stated("max_new_tokens", new if old is None else old)


def _stated(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {name: value}


def _prompts(value: Any) -> list[Any]:
    """Returns the prompts in a text, in token ids, or in a list of either."""
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


def _stop(name: str, value: Any) -> list[str]:
    several = [value] if isinstance(value, str) else value
    if (
        not isinstance(several, list)
        or len(several) > MAX_STOPS
        or not all(isinstance(s, str) and 0 < len(s) <= LONGEST_STOP for s in several)
    ):
        raise wrong(
            name, f"{name} has to be a text or {MAX_STOPS} texts at most, each of 1 to {LONGEST_STOP} characters"
        )
    return several


def _processing(name: str, value: Any) -> Any:
    try:
        check_processing({name: value})
        return value
    except ValueError as error:
        raise wrong(name, str(error)) from None


def _share(name: str, value: Any) -> float:
    share = number(0.0, 1.0)(name, value)
    if share == 0:
        raise wrong(name, f"{name}=0 keeps no token; 1 keeps every token")
    return share
