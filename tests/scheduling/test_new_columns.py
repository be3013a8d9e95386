"""A poll fetches what is new of each row, and what others hold of an answer stays as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speller import CONFIG

from eagle_jax.loop.state import TopTokens
from eagle_jax.requests.results import Step
from eagle_jax.scheduling import new_columns, programs
from eagle_jax.scheduling.growing_output import GrowingOutput, Prefix
from eagle_jax.scheduling.new_columns import MIN_WIDTH, Columns, fetch
from eagle_jax.sharding import sharding_of

ROWS, ROOM = 4, 8 * MIN_WIDTH
NUMBERS = jnp.arange(ROWS * ROOM, dtype=jnp.int32).reshape(ROWS, ROOM)
RANKS = 3


def columns_of(*, logprobs: bool, top: bool) -> Columns:
    """Columns with another number in every place."""
    likely = NUMBERS[:, :, None] * RANKS + jnp.arange(RANKS, dtype=jnp.int32)[None, None]
    return Columns(
        tokens=NUMBERS,
        committed_at_step=NUMBERS + 1,
        logprobs=-NUMBERS.astype(jnp.float32) if logprobs else None,
        top=TopTokens(likely, -likely.astype(jnp.float32)) if top else None,
    )


BEGINS = {
    "nothing is new": ([5, 9, 0, ROOM], [5, 9, 0, ROOM]),
    "ragged": ([0, 100, ROOM - 3, 7], [1, 104, ROOM, 7]),
    "a whole window, at the end": ([ROOM - MIN_WIDTH, 0, 1, 2], [ROOM, MIN_WIDTH, 1, 3]),
    "more than a window": ([3, 5, 10, 0], [4, 5, 11 + MIN_WIDTH, 2]),
    "all there is": ([0, 1, 2, 3], [ROOM, ROOM, 3, 3]),
}


@pytest.mark.parametrize("named", [(False, False), (True, False), (True, True)], ids=["ids", "logprobs", "top"])
@pytest.mark.parametrize("name", BEGINS)
@pytest.mark.parametrize("place", ["seen by numpy", "fetched", "over four devices"])
def test_what_is_new_is_what_the_whole_rows_have_there(monkeypatch, place, name, named):
    columns, (begin, end) = columns_of(logprobs=named[0], top=named[1]), BEGINS[name]
    sharding = None
    if place != "seen by numpy":
        monkeypatch.setattr(new_columns, "_is_on_host", lambda columns: False)
    if place == "over four devices":
        sharding = sharding_of("data:2,model:2", CONFIG)
        columns = sharding.put(columns, sharding.state)
    whole, (new, _) = jax.tree.map(np.asarray, columns), fetch(columns, begin, end, sharding=sharding)
    for row in range(ROWS):
        expected = jax.tree.map(lambda leaf, at=(row, slice(begin[row], end[row])): leaf[at], whole)
        jax.tree.map(np.testing.assert_array_equal, new[row], expected)


def test_polls_of_few_tokens_share_one_program(monkeypatch):
    monkeypatch.setattr(new_columns, "_is_on_host", lambda columns: False)
    columns = jax.tree.map(lambda leaf: leaf[:3], columns_of(logprobs=True, top=False))  # no other test has three rows
    before = programs.compiled()
    for count in (0, 1, 7, MIN_WIDTH):
        fetch(columns, [count] * 3, [2 * count] * 3, sharding=None)
    assert programs.compiled() == before + 1
    fetch(columns, [0] * 3, [MIN_WIDTH + 1] * 3, sharding=None)
    assert programs.compiled() == before + 2


def test_outputs_that_were_handed_out_stay_as_they_were():
    grown, step = GrowingOutput(logprobs=True, top_logprobs=2), Step([0], [-1], [True], [1], [0])
    whole, outputs = jax.tree.map(np.asarray, columns_of(logprobs=True, top=True)), []
    for begin, end in ((3, 4), (4, 4), (4, 9)):
        grown.extend(jax.tree.map(lambda leaf, at=(0, slice(begin, end)): leaf[at], whole), step)
        outputs.append(grown.output(float(end)))
    assert [len(output.token_ids) for output in outputs] == [1, 1, 6] and len(grown) == 6
    assert list(outputs[0].token_ids) == [3] and outputs[0].token_ids[1:] == []
    last = outputs[-1]
    assert list(last.committed_at_step) == [4, 5, 6, 7, 8, 9] and list(last.logprobs) == [-3, -4, -5, -6, -7, -8]
    assert last.top_logprobs[1] == [(12, -12.0), (13, -13.0)] and set(last.trees) == {4, 9}
    assert last.first(2).token_ids == [3, 4] and last.seconds == 9.0


def test_answers_without_logprobs_have_none():
    grown = GrowingOutput(logprobs=False, top_logprobs=0)
    grown.extend(jax.tree.map(lambda leaf: np.asarray(leaf)[0, :2], columns_of(logprobs=True, top=True)), None)
    output = grown.output(0.0)
    assert output.logprobs is None and output.top_logprobs is None and not output.trees


def test_a_prefix_is_indexed_as_a_list():
    items = list(range(10))
    prefix, same = Prefix(items, 6), items[:6]
    items.append(11)
    for part in (slice(None), slice(2, 99), slice(-2, None), slice(None, None, -1), slice(1, 5, 2), slice(4, 2)):
        assert prefix[part] == same[part]
    assert [prefix[0], prefix[-1], [*prefix]] == [0, 5, same] and 6 not in prefix
    with pytest.raises(IndexError):
        prefix[6]
