"""From an answer in Python to a message that reasons and calls functions."""

from caller import CALLER
from speller import DYNAMIC
from thinker import CHANNELED
from tokenizer_families import HEAD, TIGHT_CHAT, sentencepiece

from eagle_jax import api

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def read(script: str, format: api.ToolFormat, parts: int) -> tuple[api.ChatAnswer, list[dict]]:
    """An answer of a script, told in parts."""
    tools = api.read_tools(TOOLS)
    prompt = api.Chat([{"role": "user", "content": "?"}], template={"tools": tools.tools, "script": script})
    deltas, answer = [], api.ChatAnswer(CALLER.tokenizer, "1", tools=(tools, format))
    chunks = list(api.stream(CALLER, prompt, max_new_tokens=12, steps=parts, **DYNAMIC))
    for chunk in chunks:
        deltas += answer.add(chunk.token_ids, chunk.text, is_last=chunk.result is not None)
    assert answer.finish_reason(chunks[-1].result.finish_reason) == "tool_calls"
    return answer, deltas


def test_an_answer_in_python():
    answer, deltas = read("", api.tool_format_for(CALLER.tokenizer), 1)
    (call,) = answer.message["tool_calls"]
    assert answer.message["content"] == "Let me see." and call["function"]["arguments"] == '{"at": "sea"}'
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me see."
    named, argued = (delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta)
    assert named == call | {"index": 0, "function": {"name": "look", "arguments": ""}}
    assert argued == {"index": 0, "function": {"arguments": '{"at": "sea"}'}}


def test_marks_that_are_special_tokens():
    for parts in (1, 100):
        answer, _ = read("b", api.FORMATS["mistral"], parts)
        assert [call["function"]["arguments"] for call in answer.calls] == ["{}", "{}"]
        assert answer.message["content"] is None


def test_marks_stand_where_the_text_beside_the_prompt_has_them():
    """With a decoder that drops a text's first space, which an answer keeps; however many tokens come at once."""
    tokenizer = sentencepiece(TIGHT_CHAT, special=[*HEAD, "[TOOL_CALLS]"])
    mark, tools = tokenizer.convert_tokens_to_ids("[TOOL_CALLS]"), api.read_tools(TOOLS)
    prompt = tokenizer("[INST] The sea[/INST]")["input_ids"]
    said, called = (
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("I do é", ' [{"name": "look"}]')
    )
    ids = [*said, mark, *called]
    for size in (1, 2, 100):
        answer = api.ChatAnswer(tokenizer, "1", tools=(tools, api.FORMATS["mistral"]))
        detokenizer = api.IncrementalDetokenizer(tokenizer, prompt)
        for begin in range(0, len(ids), size):
            piece = ids[begin : begin + size]
            answer.add(piece, detokenizer.extend(piece), is_last=begin + size >= len(ids))
        assert answer.content.rstrip() == " I do é" and [call["function"]["name"] for call in answer.calls] == ["look"]


def test_without_calls_it_is_a_message():
    answer = api.ChatAnswer(CALLER.tokenizer, "1", tools=(api.read_tools(TOOLS), api.FORMATS["hermes"]))
    assert answer.add([], "", is_last=True) == [] and answer.finish_reason("stop") == "stop"
    assert answer.message == {"role": "assistant", "content": "", "refusal": None}


CHANNELS = (
    "<|channel|>analysis<|message|>Hm é.<|end|><|start|>assistant<|channel|>commentary to=functions.look "
    "<|constrain|>json<|message|>{}<|call|>"
)


def test_channels_whose_marks_are_special_tokens():
    tokenizer, tools = CHANNELED.tokenizer, api.read_tools(TOOLS)
    prompt, ids = (tokenizer(text)["input_ids"] for text in ("<|user|>?<|start|>assistant", CHANNELS))
    for size in (1, 2, 5, 100):
        how = dict(prompt=prompt, reasoning=api.reasoning_format_for(tokenizer))
        answer = api.ChatAnswer(tokenizer, "1", tools=(tools, api.tool_format_for(tokenizer)), **how)
        detokenizer, deltas = api.IncrementalDetokenizer(tokenizer, prompt), []
        for begin in range(0, len(ids), size):
            piece = ids[begin : begin + size]
            deltas += answer.add(piece, detokenizer.extend(piece), is_last=begin + size >= len(ids))
        (call,) = answer.message["tool_calls"]
        assert call["function"] == {"name": "look", "arguments": "{}"}
        assert (answer.message["reasoning_content"], answer.message["content"]) == ("Hm é.", None)
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm é."
        assert answer.reasoning_tokens == len(tokenizer("Hm é.")["input_ids"]) + 2  # with the marks around it


def test_channels_whose_reasoning_is_not_told_apart():
    tokenizer = CHANNELED.tokenizer
    text = CHANNELS.replace("commentary to=functions.look <|constrain|>json", "final")
    ids = tokenizer(text)["input_ids"]
    answer = api.ChatAnswer(tokenizer, "1", reasoning=api.reasoning_format_for(tokenizer), separate=False)
    answer.add(ids, api.decode(tokenizer, ids), is_last=True)
    assert answer.message == {"role": "assistant", "content": "Hm é.\n\n{}", "refusal": None}


def test_a_prompt_that_has_begun_the_reasoning():
    tokenizer, format = CALLER.tokenizer, api.reasoning_format_for(CALLER.tokenizer, "think")
    long = "Let me see. " * 20  # of a message that was cut within its reasoning
    for begun, thought, content in (
        ("<think>\n", "a", "b"),
        (f"<think>\n{long}", "a", "b"),
        ("<think>\nso</think>b", None, "a</think>b"),
        ("", None, "a</think>b"),
    ):
        prompt, ids = (
            tokenizer(text)["input_ids"] for text in (f"<|user|>what is <think>?<|assistant|>{begun}", "a</think>b")
        )
        answer = api.ChatAnswer(tokenizer, "1", prompt=prompt, reasoning=format)
        answer.add(ids, "a</think>b", is_last=True)
        assert (answer.message.get("reasoning_content"), answer.content) == (thought, content)
        assert answer.reasoning_tokens == (len(tokenizer("a</think>")["input_ids"]) if thought else 0)
