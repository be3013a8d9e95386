"""Items of /v1/responses as messages of a chat: reasoning goes to the turn that it came before."""

import pytest

from eagle_jax.protocols.responses_call import responses_call

USER = {"role": "user", "content": "?"}
SAID = {"role": "assistant", "content": "7"}
CALLED = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "1"}
CALL = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": {}}}]


def thought(text: str) -> dict:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


@pytest.mark.parametrize(
    "items, messages",
    [
        ([USER, thought("a"), thought("b"), SAID], [USER, SAID | {"reasoning_content": "ab"}]),
        (
            [USER, thought("a"), SAID, thought("b"), CALLED, USER, SAID],
            [USER, SAID | {"tool_calls": CALL, "reasoning_content": "ab"}, USER, SAID],
        ),
        ([USER, SAID, thought("b"), CALLED], [USER, SAID | {"tool_calls": CALL, "reasoning_content": "b"}]),
        (
            [USER, thought("a"), CALLED],
            [USER, {"role": "assistant", "content": "", "tool_calls": CALL, "reasoning_content": "a"}],
        ),
        ([thought("a"), USER, SAID], [USER, SAID]),
    ],
)
def test_whose_reasoning_it_is(items, messages):
    (chat,) = responses_call({"input": items}).prompts
    assert [*chat.messages] == messages
