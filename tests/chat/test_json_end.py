"""The end of JSON in a text that comes piece by piece, read once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_jax.chat import json_end
from eagle_jax.chat.json_end import JsonEndFinder

KEYS = st.text(alphabet='b"\\}', max_size=3)
ARGUMENTS = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\{}[]é \n', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='b"\\}', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
).filter(lambda value: isinstance(value, list | dict))


@given(
    ARGUMENTS,
    st.sampled_from(["", "<tool_call>", '"']),
    st.sampled_from(["", "}", ' "and', "</tool_call>{"]),
    st.data(),
)
def test_in_any_pieces_it_is_where_the_value_ends(value, before, after, data):
    whole = json.dumps(value, ensure_ascii=False)
    text, end = before + whole + after, len(before) + len(whole)
    cuts = sorted(data.draw(st.lists(st.integers(len(before), len(text)), max_size=6)))
    found = JsonEndFinder(len(before))
    for cut in [*cuts, len(text)]:
        assert found.read(text[:cut]) == (end if cut >= end else None)


@pytest.mark.parametrize("text", ["{", '{"', '{"a\\', '{"a\\"}', '["}", {]', "[[]"])
def test_what_does_not_end_has_no_end(text):
    assert JsonEndFinder(0).read(text) is None
    found = JsonEndFinder(0)
    assert {found.read(text[:size]) for size in range(len(text) + 1)} == {None}


class _Noting:
    """A pattern that notes where it begins to look."""

    def __init__(self, pattern, places: list[int]):
        self._pattern, self._places = pattern, places

    def search(self, text: str, place: int):
        self._places.append(place)
        return self._pattern.search(text, place)

    def match(self, text: str, place: int):
        self._places.append(place)
        return self._pattern.match(text, place)


def test_nothing_is_read_twice(monkeypatch):
    places: list[int] = []
    for name in ("DELIMITER", "STRING_REST"):
        monkeypatch.setattr(json_end, name, _Noting(getattr(json_end, name), places))
    text, size = '{"text": "' + 'a b \\n c \\"d\\" ' * 200 + '", "more": [{"a": 1}]}', 3
    found = JsonEndFinder(0)
    for end in range(size, len(text), size):
        places.clear()
        assert found.read(text[:end]) is None
        assert places and min(places) >= end - size - 1, "no further back than a backslash that was the last"
    assert found.read(text) == len(text) == len(json.dumps(json.loads(text)))
