"""Tables that are changed row by row equal those that are made anew, and stay where no row changes them."""

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from speller import END, RANDOM, TOKENIZER

from eagle_jax.api import Model
from eagle_jax.decoding.processor import LogitsParams
from eagle_jax.requests.processing import check_processing
from eagle_jax.requests.request import DUMMY_OPTIONS, DUMMY_REQUEST, Request
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.batch_inputs import processor_for
from eagle_jax.scheduling.logits_tables import LogitsTables
from eagle_jax.sharding import sharding_of, to_host
from eagle_jax.structured.automaton_cache import CompiledAutomaton
from eagle_jax.structured.forms import Form
from eagle_jax.structured.token_automaton import token_automaton
from eagle_jax.text.token_bytes import token_bytes

VOCABULARY = RANDOM.target.config.vocab_size
SPELT = token_bytes(TOKENIZER, VOCABULARY)


def asked(words: tuple[tuple[int, ...], ...] = (), **options: Any) -> Request:
    options = dataclasses.replace(DUMMY_OPTIONS, **check_processing(options))
    made = None
    if options.regex is not None:
        made = CompiledAutomaton(token_automaton(Form("regex", options.regex).automaton(), SPELT, [END]), 0.0)
    return dataclasses.replace(DUMMY_REQUEST, options=options, bad_words=words, structured=made)


REQUESTS = [
    DUMMY_REQUEST,
    asked(),
    asked(presence_penalty=0.5, repetition_penalty=1.5),
    asked(frequency_penalty=1.0, min_tokens=3),
    asked(logit_bias={3: 1.5, 9: -2.0}),
    asked(allowed_token_ids=[4, 5, 6], logit_bias={5: 1.0}),
    asked(bad_words=["x"], words=((7,), (1, 2, 3))),
    asked(regex="[ab]+", presence_penalty=0.25),
    asked(regex="a{9}"),
    asked(regex="[0-9]{2}"),
]


def over(mesh: str | None) -> Model:
    if mesh is None:
        return RANDOM
    sharding = sharding_of(mesh, RANDOM.target.config)
    return dataclasses.replace(
        RANDOM, target=sharding.put(RANDOM.target, sharding.target), head=None, sharding=sharding
    )


def assert_same(params: LogitsParams, expected: LogitsParams) -> None:
    """The same values, with automata in any places."""
    params = to_host(params)
    for field in dataclasses.fields(LogitsParams):
        if field.name != "automata":
            np.testing.assert_array_equal(getattr(params, field.name), getattr(expected, field.name), field.name)
    one, other = params.automata, expected.automata
    np.testing.assert_array_equal(one.of_row >= 0, other.of_row >= 0)
    for row in np.flatnonzero(other.of_row >= 0):
        for name in ("token_class", "next", "mask_of_state", "masks"):
            mine, true = (getattr(tables, name)[tables.of_row[row]] for tables in (one, other))
            np.testing.assert_array_equal(mine, true, name)


@pytest.mark.parametrize("mesh", [None, "data:2,model:2"])
def test_rows_that_come_and_go(mesh):
    rng, model = random.Random(3), over(mesh)
    tables, rows = LogitsTables(model), [DUMMY_REQUEST] * 4
    for _ in range(40):
        for place in rng.sample(range(4), rng.randint(1, 2)):
            rows[place] = rng.choice(REQUESTS)
        expected, params = processor_for(RANDOM, rows, 4, ()), tables.of(rows, ())
        assert (params is None) == (expected is None)
        if expected is not None:
            assert_same(params, expected)
        if rng.random() < 0.1:  # fewer rows take part for a step
            few = [REQUESTS[2], REQUESTS[4]]
            assert_same(tables.of(few, ()), processor_for(RANDOM, few, 2, ()))


def test_what_no_row_changes_stays_where_it_is():
    tables = LogitsTables(RANDOM)
    free, penalty, other, form = REQUESTS[0], REQUESTS[2], REQUESTS[3], REQUESTS[7]
    first = tables.of([penalty, free], ())
    assert tables.of([penalty, free], ()) is first
    assert tables.of([free, free], ()) is None
    second = tables.of([other, penalty], ())
    assert second.bias is first.bias and second.static_bans is first.static_bans
    assert second.automata.next is first.automata.next
    third = tables.of([form, penalty], ())
    assert third.bias is first.bias and third.automata.next is not first.automata.next
    fourth = tables.of([penalty, form], ())
    assert fourth.automata.next is third.automata.next and to_host(fourth.automata.of_row).tolist() == [-1, 0]


def test_nothing_is_compiled_where_it_was_warmed_up():
    tables = LogitsTables(over("data:2,model:2"))
    assert tables.warm_up() == 0.0
    tables.of([REQUESTS[2]] * 6, ())
    assert tables.warm_up() > 0.0 and tables.warm_up() == 0.0
    before = programs.compiled()
    tables.of([REQUESTS[4], *REQUESTS[4:6], *[REQUESTS[2]] * 3], ())
    assert programs.compiled() == before
