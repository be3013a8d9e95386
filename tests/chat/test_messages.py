"""Messages in OpenAI's form become those that chat templates read."""

from eagle_jax.chat.messages import is_message, template_messages


def test_calls_and_their_answers():
    function = {"name": "look", "arguments": '{"at": "sea"}'}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    messages = [
        {"role": "user", "content": "?", "colour": "red"},
        called,
        {"role": "tool", "tool_call_id": "1", "content": "blue"},
        {"role": "tool", "tool_call_id": "1", "content": "red", "name": "own"},
        {"role": "tool", "tool_call_id": "2", "content": "green"},
    ]
    user, assistant, *tool_messages = template_messages(messages, "the prompt")
    assert user == messages[0] and assistant["content"] == "" and called["content"] is None
    assert assistant["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "sea"}}
    assert [message.get("name") for message in tool_messages] == ["look", "own", None]
    assert function["arguments"] == '{"at": "sea"}', "nothing is changed"


def test_arguments_that_are_objects_or_nothing():
    for arguments, expected in (({"a": 1}, {"a": 1}), ("", {}), ("{}", {})):
        calls = [{"function": {"name": "look", "arguments": arguments}}]
        (message,) = template_messages([{"role": "assistant", "content": "so", "tool_calls": calls}], "the prompt")
        assert message["tool_calls"][0]["function"]["arguments"] == expected and message["content"] == "so"


def test_what_is_a_message():
    assert is_message({"role": "user", "content": ""}) and is_message({"role": "a", "tool_calls": [1]})
    for none in (7, {"role": "user"}, {"content": "a"}, {"role": 1, "content": "a"}, {"role": "a", "content": 7}):
        assert not is_message(none)


def test_calls_have_the_ids_that_the_model_writes():
    def call(id_, name):
        return {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}

    def conversation(*ids):
        first = {"role": "assistant", "content": "", "tool_calls": [call(ids[0], "look"), call(ids[1], "go")]}
        last = {"role": "assistant", "content": "", "tool_calls": [call(ids[2], "look")]}
        tool_messages = [{"role": "tool", "tool_call_id": id_, "content": "7"} for id_ in ids]
        return [first, *tool_messages[:2], last, tool_messages[2]]

    given, own = conversation("call_a", "call_b", "call_c"), ("functions.look:0", "functions.go:1", "functions.look:2")
    kimi, other = "<|tool_calls_section_begin|>", "<tool_call>"
    assert template_messages(given, "it", kimi) == template_messages(conversation(*own), "it", other)
    assert template_messages(given, "it", other) != template_messages(given, "it", kimi)
