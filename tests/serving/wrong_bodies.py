"""Bodies of requests that a server has to refuse, by path."""

import json

from speller import asked

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
WRONG_ANYWHERE: dict[str, list] = {
    "model": [7, ["speller"], {}, True, "gpt-9", "", "spell\x00er", "\ud800"],
    "temperature": ["1", -0.1, 2.1, 1e308, True, [], {"a": 1}, 10**400],
    "top_p": [0, -1, 1.01, "all", False, [0.5]],
    "top_k": [-2, 1.5, "5", 2**31, True],
    "min_p": [-0.5, 2, "0", {}],
    "seed": [-1, 2**63, 1.5, "7", True, 10**4000],
    "n": [0, -3, 129, 1.0, "2", [1], True],
    "stop": ["", [""], ["a"] * 65, [1], 7, {"a": "b"}, "x" * 501, [None]],
    "stream": ["yes", 1, 0, []],
    "stream_options": [{}, [], "usage", {"include_usage": True}],  # without stream
    "eagle": ["yes", 1],
    "max_tokens": [0, -1, 1.5, "9", 2**31, True, 48],
    "frequency_penalty": [2.5, "0", True],
    "presence_penalty": [-3, []],
    "repetition_penalty": [0, -1, "1", False],
    "logit_bias": [{"5": 101}, {"5": "1"}, {"a": 1}, {"999": 1}, [5], "none"],
    "min_tokens": [-1, 1.5, "1"],
    "ignore_eos": [0, "no"],
    "stop_token_ids": [[-1], ["a"], 5, [999], list(range(9))],
    "bad_words": [[""], [7], 7],
    "allowed_token_ids": [[], [999], "all"],
    "guided_json": ["{", 7, {"$ref": "#"}, {"type": "text"}],
    "guided_regex": ["(", 7, "a(?=b)"],
    "choices": ["yes", [""], [7]],
    "regex": [7, "["],
    "json_schema": ["{", {"not": {}}],
    "structured_outputs": [{"json": {}, "regex": "a"}, {"choice": "a"}, {"grammar": "a"}, {"mood": 1}, "a"],
    "ebnf": ["root ::= a"],
    "use_beam_search": [True],
    "skip_special_tokens": [False],
    "request_id": [7],
    "store": [0],
    "service_tier": [1],
    "user": [7, {}],
    "metadata": ["x", [1]],
    "best_answer": [1],
    "Temperature": [0.5],
    "temperature ": [0.5],
    "x" * 5000: [1],
}
WRONG: dict[str, dict[str, list]] = {
    CHAT: {
        "messages": [
            *([], "Hi", 7, {}, [7], ["Hi"], [[]], [{}], [None], [{"role": "user"}], [{"content": "Hi"}]),
            *([{"role": role, "content": "Hi"}] for role in ("wizard", "tool", "", 7, None, ["user"])),
            *([{"role": "user", "content": content}] for content in (7, {}, True, [7], ["Hi"], "\ud800", "x" * 99)),
            *(
                [{"role": "user", "content": [part]}]
                for part in ({}, {"type": "image_url"}, {"type": "text", "text": 7})
            ),
            [{"role": "user", "content": "Hi", "colour": "red"}],
            [{"role": "assistant", "content": "Hi", "tool_calls": [{"id": "1"}]}],
            [{"role": "user", "content": [{"type": "text", "text": "Hi", "mood": {}}]}],
            [{"role": "system", "content": "the template refuses system messages"}],
        ],
        "max_completion_tokens": [0, "9", 2.5],
        "logprobs": [0, 1, "true"],
        "top_logprobs": [1, 20, "0", 21],
        "tools": [[{"type": "function"}], {}],
        "tool_choice": ["required", {}],
        "chat_template_kwargs": [[], "x"],
        "response_format": [
            {"type": "json"},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {}},
            "json",
        ],
        "functions": [[{}]],
        "prediction": [{"type": "content"}],
        "prompt": ["a"],
        "reasoning_effort": [7],
    },
    COMPLETION: {
        "prompt": [7, [], "", [[]], [1.5], ["a", 1], [True], [-1], [300], [2**40], {}, [["a"]], ["a", ""], [[1]] * 9],
        "logprobs": [21, -1, True, "0"],
        "echo": [1, "no"],
        "prompt_logprobs": [-1, 21, True],
        "suffix": ["end"],
        "best_of": [2, 0],
        "messages": [[]],
    },
}
RAW = [
    b"",
    b" ",
    b"{",
    b"}",
    b"[]",
    b"[1, 2]",
    b"null",
    b"true",
    b"7",
    b'"text"',
    b"{'prompt': 'a'}",
    b'{"prompt": }',
    b'{"prompt": "a",}',
    b'{"prompt": "a"} {}',
    b'{"prompt": "a", "prompt": "b"}',
    b'{"prompt": NaN}',
    b'{"seed": Infinity}',
    b'{"prompt": "\xff\xfe"}',
    b"\x00" * 50,
    b"\xef\xbb\xbf{}",
    '{"prompt": "a"}'.encode("utf-16"),
    b'{"prompt": "a\nb"}',
    b"[" * 50_000,
    b'{"a":' * 15_000,
    b'{"prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    b'{"seed": ' + b"9" * 5000 + b"}",
    b'{"prompt": "' + b"a" * 60_000 + b'"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\\x41"}',
    b"prompt=a",
    b"<a/>",
]


def table() -> list[tuple[str, bytes]]:
    """Paths and bodies that are refused."""
    rows = []
    for path, own in WRONG.items():
        good = {"messages": asked("Hi")} if path == CHAT else {"prompt": "a"}
        for name, values in (WRONG_ANYWHERE | own).items():
            rows += [(path, json.dumps(good | {"model": "speller"} | {name: value}).encode()) for value in values]
        rows += [(path, json.dumps({"model": "speller"}).encode())]
    return rows + [(path, body) for path in WRONG for body in RAW]
