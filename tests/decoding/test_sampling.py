"""Draws: the exact distribution, what they depend on, filters against a slow reference, extreme settings."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tree_reference
from batches import settings_of

from eagle_jax.decoding.sampling import (
    GREEDY,
    Sampling,
    Settings,
    at_depth,
    draw,
    noise,
    request_keys,
    scores,
    warp,
)
from eagle_jax.decoding.threshold import within_top_weight

FILTERED = Sampling(sampled=True, filtered=True)
UNFILTERED = Sampling(sampled=True, filtered=False)
VOCAB = 8


def rows(keys: jax.Array, **values: object) -> Settings:
    """Settings of every row; what is not named is off."""
    return settings_of(len(keys), **{"temperature": 1.0} | values, key=keys)  # type: ignore[arg-type]


# The distribution --------------------------------------------------------------------------------------------------

REQUESTS = 200_000
SETTINGS = {"temperature": 0.7, "top_k": 6, "top_p": 0.9, "min_p": 0.05}
TABLE = np.random.default_rng(3).normal(size=(VOCAB, VOCAB)).astype(np.float32) * 0.5  # logits after each token


def p_value(settings: Settings, second_position: int) -> float:
    """Chi-square of two consecutive tokens of many requests against softmax(warp(logits)); 0 for an impossible pair."""

    @jax.jit
    def pairs() -> jax.Array:
        def drawn(logits: jax.Array, position: int) -> jax.Array:
            at = jnp.full((REQUESTS, 1), position, jnp.int32)
            return draw(logits[:, None], noise(settings, at, VOCAB), settings, FILTERED)[:, 0]

        first = drawn(jnp.broadcast_to(TABLE[0], (REQUESTS, VOCAB)), 100)
        return first * VOCAB + drawn(jnp.asarray(TABLE)[first], second_position)

    distributions = np.stack([tree_reference.softmax(tree_reference.warp(row, **SETTINGS)) for row in TABLE])
    expected = (distributions[0][:, None] * distributions).ravel() * REQUESTS
    counts = np.bincount(pairs(), minlength=VOCAB * VOCAB)
    possible = expected > 0
    assert possible.sum() > 20, "the distribution leaves too few pairs to test anything"
    if counts[~possible].any():
        return 0.0
    return float(scipy.stats.chisquare(counts[possible], expected[possible]).pvalue)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "seeds, samples",
    [(range(REQUESTS), [0] * REQUESTS), ([17] * REQUESTS, range(REQUESTS))],
    ids=["a seed for each", "answers to one seed"],
)
def test_two_consecutive_tokens_follow_the_warped_softmax(seeds: Sequence[int], samples: Sequence[int]):
    assert p_value(rows(request_keys(seeds, samples), **SETTINGS), 101) > 0.01


@pytest.mark.matrix
@pytest.mark.parametrize("mistake", ["one noise for two positions", "temperature ignored", "top-p ignored"])
def test_the_law_test_sees_wrong_samplers(mistake: str):
    ignored = {"temperature ignored": {"temperature": 1.0}, "top-p ignored": {"top_p": 1.0}}.get(mistake, {})
    settings = rows(request_keys(range(REQUESTS), [0] * REQUESTS), **SETTINGS | ignored)
    assert p_value(settings, 100 if mistake == "one noise for two positions" else 101) < 1e-6


# What a draw depends on ---------------------------------------------------------------------------------------------


def test_a_draw_depends_on_its_own_logits_seed_and_position_only(getkey):
    """A row alone, and the same row in a batch of other settings, with other nodes, at another place."""
    logits = jax.random.normal(getkey(), (4, 6, 50)) * 3
    positions = jnp.arange(24, dtype=jnp.int32).reshape(4, 6)
    settings = rows(
        request_keys([5, 6, 7, 5], [0, 0, 2, 1]),
        temperature=[0.0, 0.7, 1.3, 1.0],
        top_k=[0, 5, 0, 0],
        top_p=[1, 1, 0.8, 1],
        min_p=[0, 0, 0, 0.1],
    )
    drawing = jax.jit(lambda logits, at, settings: draw(logits, noise(settings, at, 50), settings, FILTERED))
    together = drawing(logits, positions, settings)
    for row in range(4):
        alone = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], settings)
        for node in range(6):
            one = drawing(logits[row : row + 1, node : node + 1], positions[row : row + 1, node : node + 1], alone)
            assert int(one[0, 0]) == int(together[row, node])


def test_noise_is_a_function_of_key_and_position(getkey):
    settings = rows(request_keys([1, 1, 2], [0, 0, 0]))
    drawn = jax.jit(noise, static_argnums=2)(settings, jnp.array([[3, 4], [4, 3], [3, 4]]), 20)
    np.testing.assert_array_equal(drawn[0], drawn[1, ::-1])
    assert len(np.unique(drawn[jnp.array([0, 2])])) == 80
    expected = jax.random.gumbel(jax.random.fold_in(jax.random.key(1), 4), (20,), jnp.float32, mode="high")
    np.testing.assert_array_equal(drawn[0, 1], expected)


def test_noise_of_a_tree_is_gathered_by_depth():
    settings, depth = rows(request_keys([1, 2], [0, 0])), jnp.array([[0, 1, 1, 2], [0, 1, 2, 3]])
    by_depth = noise(settings, jnp.arange(10, 18, dtype=jnp.int32).reshape(2, 4), 5)
    by_node = noise(settings, jnp.array([[10], [14]]) + depth, 5)
    np.testing.assert_array_equal(at_depth(by_depth, depth), by_node)


# Keys ---------------------------------------------------------------------------------------------------------------


def words(keys: jax.Array) -> list[list[int]]:
    return jax.random.key_data(keys).tolist()


def asked(seeds: list[int], samples: Sequence[int]) -> list[list[int]]:
    return request_keys(seeds, samples).tolist()


def test_the_first_of_several_answers_is_the_single_answer():
    assert asked([9, 9, 9], [0, 1, 2])[0] == words(jax.random.key(9)[None])[0]
    assert len({tuple(key) for key in asked([9] * 5 + [8], [0, 1, 2, 3, 4, 1])}) == 6


def test_no_answer_starts_from_the_noise_key_of_another_answers_position():
    positions = jax.vmap(lambda position: jax.random.fold_in(jax.random.key(9), position))(jnp.arange(1000))
    assert not {tuple(key) for key in words(positions)} & {tuple(key) for key in asked([9] * 9, range(9))}


def test_every_bit_of_a_seed_counts_with_and_without_64_bit_types():
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**62, 2**63 - 1]
    keys = asked(seeds, [0] * len(seeds))
    assert len({tuple(key) for key in keys}) == len(seeds)
    with jax.enable_x64(True):
        assert asked(seeds, [0] * len(seeds)) == keys
        assert words(jnp.stack([jax.random.key(seed) for seed in seeds])) == keys


def test_no_requests_have_no_keys():
    assert request_keys([], []).shape == (0, 2)


@pytest.mark.parametrize("seed", [-1, 2**63, 2**100])
def test_seeds_out_of_range_are_refused(seed: int):
    with pytest.raises(ValueError, match=f"seed is {seed}, expected a whole number from 0 to"):
        request_keys([0, seed], [0, 0])


# Greedy -------------------------------------------------------------------------------------------------------------


def test_greedy_rows_take_the_argmax_even_among_hot_ones(getkey):
    logits = jax.random.normal(getkey(), (2, 30, 100)) * 1e3
    logits = logits.at[0, :, 7].set(logits.max() + 1).at[0, :, 9].set(logits.max() + 1)  # a tie: the lower id
    settings = rows(request_keys([1, 2], [0, 0]), temperature=[0.0, 1e6], top_k=[1, 0], top_p=[0.1, 1], min_p=[1, 0])
    drawn_with = noise(settings, jnp.arange(60, dtype=jnp.int32).reshape(2, 30), 100)
    hot = draw(logits, drawn_with, settings, FILTERED)
    np.testing.assert_array_equal(hot[0], 7)
    np.testing.assert_array_equal(draw(logits, None, settings, GREEDY)[0], 7)
    assert len(np.unique(hot[1])) > 5


def test_nothing_unneeded_is_compiled():
    settings = rows(request_keys([1], [0]))
    logits = jnp.zeros((1, 3, 9))

    def program(mode: Sampling) -> str:
        return str(jax.make_jaxpr(lambda logits: draw(logits, logits, settings, mode))(logits))

    assert "div" not in program(GREEDY)
    assert "while" not in program(UNFILTERED) and "scan" not in program(UNFILTERED)
    assert "while" in program(FILTERED) or "scan" in program(FILTERED)


# Filters ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "chosen",
    [
        {"temperature": 0.6},
        {"top_k": 3},
        {"top_k": 100},
        {"top_p": 0.5},
        {"top_p": 0.999},
        {"min_p": 0.2},
        {"temperature": 1.7, "top_k": 7, "top_p": 0.8, "min_p": 0.15},
    ],
)
def test_warp_is_the_slow_reference(chosen: dict[str, float], ties: bool):
    logits = np.random.default_rng(0).normal(size=(1, 200, 30)).astype(np.float32) * 2
    logits = np.round(logits) if ties else logits
    got = np.asarray(warp(jnp.array(logits), rows(request_keys([0], [0]), **chosen), FILTERED))[0]
    for row, expected in zip(got, logits[0], strict=True):
        reference = tree_reference.warp(expected, **{"temperature": 1.0, **chosen})
        np.testing.assert_allclose(row, reference - reference.max(), rtol=1e-5, atol=1e-5)


@pytest.mark.parity
def test_warp_is_huggingfaces():
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as hf

    logits = np.random.default_rng(1).normal(size=(200, 40)).astype(np.float32) * 2
    expected = torch.tensor(logits)
    for warper in (
        hf.TemperatureLogitsWarper(0.8),
        hf.TopKLogitsWarper(12),
        hf.TopPLogitsWarper(0.85),
        hf.MinPLogitsWarper(0.1),
    ):
        expected = warper(None, expected)
    settings = rows(request_keys([0], [0]), temperature=0.8, top_k=12, top_p=0.85, min_p=0.1)
    got = np.asarray(warp(jnp.array(logits)[None], settings, FILTERED))[0]
    expected = expected.numpy() - expected.numpy().max(-1, keepdims=True)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_thresholds_are_exact_for_every_float(platform, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    values = jnp.array([[[3.0, -0.5, -jnp.inf, 3.0, 1e-30, -1e-30, -2.0, jnp.inf]]])
    for k in range(1, 10):
        kept = within_top_weight(values, jnp.ones_like(values), jnp.array([[k]], jnp.float32))
        expected = [int((np.asarray(values) > value).sum()) < k for value in values[0, 0]]
        assert kept[0, 0].tolist() == expected


@pytest.mark.parametrize(
    "chosen",
    [
        {"temperature": 1e-3},
        {"temperature": 1e-30},
        {"temperature": 1e-45},
        {"top_k": 1},
        {"top_p": 1e-9},
        {"top_p": 1e-45},
        {"min_p": 1.0},
        {"temperature": 1e-6, "top_k": 1, "top_p": 1e-6, "min_p": 1.0},
    ],
)
def test_extreme_settings_draw_the_most_probable_token(getkey, chosen: dict[str, float]):
    logits = (jax.random.normal(getkey(), (1, 50, 300)) * 30).at[:, :, 5].set(-jnp.inf)
    logits = logits.at[:, :, 250].set(logits.max() + 0.1)
    settings = rows(request_keys([0], [0]), **chosen)
    drawn_with = noise(settings, jnp.arange(50, dtype=jnp.int32)[None], 300)
    np.testing.assert_array_equal(draw(logits, drawn_with, settings, FILTERED), 250)
    warped, ranked = (f(settings) for f in (lambda s: warp(logits, s, FILTERED), lambda s: _scores(logits, s)))
    assert not np.isnan(warped).any() and not np.isnan(ranked).any()


def _scores(logits: jax.Array, settings: Settings) -> jax.Array:
    at = jnp.arange(logits.shape[1], dtype=jnp.int32)[None]
    return scores(logits, noise(settings, at, logits.shape[2]), settings, FILTERED).of_all()


# What a drafter ranks by --------------------------------------------------------------------------------------------


def test_a_drafter_with_the_targets_logits_guesses_every_draw(getkey):
    """With the same noise the best guess is the token to come, under all filters; without it often another."""
    logits = jax.random.normal(getkey(), (4, 100, 50)) * 3
    settings = rows(
        request_keys([1, 2, 3, 4], [0] * 4), temperature=[0.0, 1.0, 0.6, 1.4], top_k=[0, 0, 4, 0], top_p=[1, 1, 1, 0.7]
    )
    drawn_with = noise(settings, jnp.arange(400, dtype=jnp.int32).reshape(4, 100), 50)
    draws = draw(logits, drawn_with, settings, FILTERED)
    coupled = scores(logits, drawn_with, settings, FILTERED).of_all()
    hits = jnp.mean(coupled.argmax(-1) == draws, axis=1, dtype=jnp.float32)
    assert hits[0] == hits[1] == 1 and hits[2] > 0.9 and hits[3] > 0.9
    assert jnp.mean(logits.argmax(-1)[1] == draws[1], dtype=jnp.float32) < 0.8
    np.testing.assert_allclose(jnp.exp(coupled).sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(coupled[0], jax.nn.log_softmax(logits[0]))
    np.testing.assert_array_equal(scores(logits, None, settings, GREEDY).of_all(), jax.nn.log_softmax(logits))


def test_a_cold_drafter_is_no_surer_of_itself(getkey):
    """Towards T = 0 scores become those of greedy rows; above 1 they are as sharp as the noise; no T is too large."""
    logits = jax.random.normal(getkey(), (4, 20, 50)) * 3
    settings = rows(request_keys([1, 2, 3, 4], [0] * 4), temperature=[1e-6, 0.5, 2.0, 3e38])
    drawn_with = noise(settings, jnp.arange(80, dtype=jnp.int32).reshape(4, 20), 50)
    got = scores(logits, drawn_with, settings, Sampling(sampled=True, filtered=False)).of_all()
    np.testing.assert_allclose(got[0], jax.nn.log_softmax(logits[0]), atol=1e-3)
    np.testing.assert_allclose(got[1], jax.nn.log_softmax(logits[1] + 0.5 * drawn_with[1]), atol=1e-4)
    np.testing.assert_allclose(got[2], jax.nn.log_softmax(logits[2] / 2 + drawn_with[2]), atol=1e-4)
    np.testing.assert_allclose(got[3], jax.nn.log_softmax(drawn_with[3]), atol=1e-4)
