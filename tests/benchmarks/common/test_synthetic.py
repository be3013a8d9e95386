"""Synthetic pairs answer as their chart says, and their steps commit as many tokens as asked for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from benchmarks.common.chart import PUBLISHED, Chart, Error
from benchmarks.common.synthetic import PUBLISHED_SHAPES, Shape, Synthetic, make
from eagle_jax.inspection import plan
from eagle_jax.models.layout import for_files
from eagle_jax.models.quant import is_quantized, scheme_of

TREE, CHAIN = (12, 3, 3), (5, 3, 1)  # both get 4 levels deep
TOKENS = 120  # of 128 that do not repeat


@functools.cache
def pair(error: Error) -> Synthetic:
    return make(Shape.of("tiny"), error, dtype="float32")


def constructed(chart: Chart, prompt: list[int], tokens: int, depth: int, branches: bool = True) -> list[int]:
    """Tokens that each step commits on the way to an answer of `tokens` tokens, the last cut at its end."""
    mistaken = set(chart.wrong.tolist()) | (set() if branches else set(chart.second.tolist()))
    root, left, lengths = int(chart.after[np.searchsorted(chart.ids, prompt[-1])]), tokens - 1, []
    while left:
        length = 1
        while length <= depth and root not in mistaken:
            root, length = int(chart.after[root]), length + 1
        root = int(chart.after[root])
        lengths.append(min(length, left))
        left -= lengths[-1]
    return lengths


def expected(error: Error, depth: int, branches: bool = True) -> float:
    """Mean acceptance length with trees of this depth."""
    right = 1 - error.wrong - (0 if branches else error.second)
    return sum(right**level for level in range(depth + 1))


def answered(made: Synthetic, prompt: list[int], **how: object) -> eagle_jax.Result:
    return eagle_jax.generate(made.model, prompt, max_new_tokens=TOKENS, **how)


@pytest.mark.matrix
@pytest.mark.parametrize("error", [Error(), Error(wrong=0.25), Error(wrong=0.1, second=0.2)], ids=str)
def test_steps_commit_as_many_tokens_as_asked_for(error: Error):
    made = pair(error)
    prompt = made.chart.prompt(10)
    plain = answered(made, prompt, drafter="none")
    assert plain.token_ids == made.chart.answer(prompt, TOKENS)
    tree = answered(made, prompt, tree=TREE)
    assert tree.token_ids == plain.token_ids
    wanted = constructed(made.chart, prompt, TOKENS, 4)
    if not error.second:
        assert tree.stats.accepted_lengths == wanted
    # 12 nodes do not hold every path on which several second guesses are right
    assert tree.stats.mean_accepted_length == pytest.approx(np.mean(wanted), rel=0.15)
    assert tree.stats.mean_accepted_length == pytest.approx(expected(error, 4), rel=0.15), "of 24 to 40 steps"


def test_without_error_every_step_reaches_the_end():
    stats = answered(pair(Error()), pair(Error()).chart.prompt(10), tree=TREE).stats
    assert stats.accepted_lengths[:-1] == [5] * (len(stats.accepted_lengths) - 1)


def test_a_chain_misses_what_is_second():
    made = pair(Error(wrong=0.1, second=0.2))
    prompt = made.chart.prompt(10)
    lengths = answered(made, prompt, tree=CHAIN).stats.accepted_lengths
    assert np.mean(lengths) == pytest.approx(
        np.mean(constructed(made.chart, prompt, TOKENS, 4, branches=False)), rel=0.1
    )


def test_a_long_chart_keeps_its_promise():
    chart = Chart.drawn(128256, 32000, PUBLISHED)
    assert len(set(chart.ids.tolist())) == 32000 and chart.ids[-1] < 128256 and (np.diff(chart.ids) > 0).all()
    prompt = chart.prompt(1)
    assert len(set(chart.answer(prompt, 32000))) == 32000, "one cycle goes round them all"
    for depth, branches in ((8, True), (8, False), (3, True)):
        lengths = constructed(chart, prompt, 30000, depth, branches)
        assert sum(lengths) == 29999
        assert np.mean(lengths) == pytest.approx(expected(PUBLISHED, depth, branches), rel=0.03)
    assert expected(PUBLISHED, 8) == pytest.approx(5.4, abs=0.05)


def test_rounded_weights_are_those_that_load_would_give():
    shape = Shape.of("tiny")
    made = make(shape, PUBLISHED, quantize="int4", dtype="float32").model
    scheme = scheme_of("int4")
    for got, wanted in (
        (made.target.params, plan.target_shapes(shape.target, np.dtype("float32"), scheme).params),
        (made.head.params, plan.head_shapes(shape.head, np.dtype("float32"), scheme).params),
    ):
        got, wanted = (jax.eval_shape(for_files, params) for params in (got, wanted))
        assert jax.tree.structure(got) == jax.tree.structure(wanted)
        assert jax.tree.map(np.shape, got) == jax.tree.map(np.shape, wanted)
        assert is_quantized(got)


def test_quantized_pairs_follow_the_chart():
    """The layout of files, as other programs get it, and 8 bits: one pass over an answer shows what is said next."""
    pair = make(Shape.of("tiny"), PUBLISHED, quantize="int8", dtype="float32")
    target = dataclasses.replace(pair.model.target, params=pair.model.target.stored_params)
    text = pair.chart.answer(pair.chart.prompt(1), 20)
    tokens = np.argmax(target(jnp.asarray([text]))[1][0], axis=-1)
    assert tokens[:-1].tolist() == text[1:]


def test_shapes_are_the_published_ones():
    heads = {name: Shape.of(name) for name in PUBLISHED_SHAPES}
    assert [shape.target.num_hidden_layers for shape in heads.values()] == [32, 32, 40, 80]
    assert {shape.head.draft_vocab_size for shape in heads.values()} == {32000}
    eight = heads["8b"]
    assert (eight.target.hidden_size, eight.target.num_key_value_heads, eight.head.taps) == (4096, 8, (2, 16, 29))
    assert dataclasses.replace(eight.head.layers, num_hidden_layers=32) == eight.target
    with pytest.raises(
        ValueError, match="shape '9b' is not known; expected one of tiny, small, 1.1b, 7b, 8b, 13b, 70b"
    ):
        Shape.of("9b")
