"""The page is told what of an answer is reasoning."""

from speller import DYNAMIC, SPELLER, asked
from thinker import ANSWER, THINKER, THOUGHT

from eagle_jax.api import encode, stream
from eagle_jax.serving.ui.step_events import StepEvents


def events(model) -> list[dict]:
    prompt = encode(model.tokenizer, asked("?"), 272, "it")
    telling = StepEvents(model.tokenizer, prompt)
    return [telling.event(chunk) for chunk in stream(model, prompt, max_new_tokens=12, steps=1, **DYNAMIC)]


def test_reasoning_is_told_apart():
    told = events(THINKER)
    assert "".join(event["reasoning_content"] for event in told) == THOUGHT
    assert "".join(event["content"] for event in told) == ANSWER
    shown = {aside: "" for aside in (True, False)}
    for token in (token for event in told for token in event["tokens"]):
        shown[token.get("aside", False)] += token["text"]
    assert shown == {True: f"<think>\n{THOUGHT}\n</think>", False: f"\n\n{ANSWER}"}


def test_a_model_without_reasoning_has_only_tokens():
    assert all(event.keys() <= {"tokens", "drafted", "seconds", "tree"} for event in events(SPELLER))
