"""The way of a draft head from its file to a drafter, to a trainer and to a file again: short, and without return."""

import pytest
import safetensors.numpy
from chats import TOKENIZER, config
from toy import pair
from walking import Call, rooms, walk

import eagle_jax
from eagle_jax.converters.files import Weights
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.head_kinds import HeadKind
from eagle_jax.training.run import run

MOST = 12  # hops


@pytest.fixture
def walks(monkeypatch) -> set[tuple[Call, ...]]:
    """Walks to a reader of weights, to a drafter, to a part of a kind of head, and to a file that is written."""
    walks: set[tuple[Call, ...]] = set()

    def watch(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def watched(self, *args, **kwargs):
            part = args[0] if owner is HeadKind else owner.__name__
            walks.add((*walk(), (part, name)))
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    for owner, name in ((Weights, "take"), (Eagle, "__init__"), (HeadKind, "get")):
        watch(owner, name)
    save = safetensors.numpy.save_file

    def save_file(*args, **kwargs):
        walks.add((*walk(), ("a file", "save_file")))
        save(*args, **kwargs)

    monkeypatch.setattr(safetensors.numpy, "save_file", save_file)
    return walks


def to(part: str, walks: set[tuple[Call, ...]]) -> list[tuple[Call, ...]]:
    found = [calls for calls in walks if calls[-1][0] == part]
    assert found and all(len(calls) <= MOST for calls in found), found
    return found


def test_from_file_to_drafter(walks):
    model = eagle_jax.load("toy")
    of_head = [calls for calls in to("Weights", walks) if ("converters", "load_head") in calls]
    assert of_head and all(rooms(calls) == ["loading", "converters", "Weights"] for calls in of_head), of_head
    walks.clear()
    eagle_jax.generate(model, [1, 2, 3], max_new_tokens=4)
    for calls in to("Eagle", walks):
        assert rooms(calls) == ["scheduling", "methods", "Eagle"]


def test_from_training_to_file(walks, tmp_path):
    run(config(tmp_path, "steps=3"), pair()[0], TOKENIZER)
    for part in ("begin", "loss"):
        assert all(rooms(calls) == ["training", part] for calls in to(part, walks))
    assert all(rooms(calls) == ["training", "converters", "a file"] for calls in to("a file", walks))
