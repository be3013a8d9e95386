"""What a P-EAGLE head learns: against PyTorch, against what it would draft, and until it drafts one conversation."""

import dataclasses
import importlib
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import peagle_case as case
import pytest
from batches import params_of
from loss_parity import assert_agree, value_and_gradients
from states import steps_by_row
from toy import CONFIG, pair, peagle

from eagle_jax.configs.heads import Eagle3Config, MaskConfig
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters import load_head, save_head
from eagle_jax.decoding import sampling
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.peagle import PEagle
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM, causal
from eagle_jax.training import optimizer
from eagle_jax.training.features import hidden_states
from eagle_jax.training.heads import first
from eagle_jax.training.objective import PEAGLE
from eagle_jax.training.peagle_loss import Sample, choose_rows, peagle_loss
from eagle_jax.training.settings import HeadConfig, OptimizerConfig
from eagle_jax.training.update import accepted_length, begin, update, without_params

TOKENS = np.asarray(jax.random.randint(jax.random.key(5), (2, 14), 0, 28), np.int32)
ANSWER = np.stack([np.arange(14) >= 5, (np.arange(14) >= 2) & (np.arange(14) != 8)])
EVERY = dataclasses.replace(PEAGLE, anchors=14, down_sample_ratio=1.0)
GOLDEN = pathlib.Path(__file__).with_name("golden_peagle.npz")


@pytest.mark.matrix
@pytest.mark.parity
@pytest.mark.parametrize("source", ["golden", "live"])
def test_loss_and_gradients_as_pytorch_has_them(source: str):
    """Every anchor at every depth, with a draft vocabulary and a decay."""
    if source == "live":
        pytest.importorskip("torch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = importlib.import_module("peagle_torch").answers()
    else:
        with np.load(GOLDEN) as file:
            expected = dict(file)
    target, head = made()
    given = jax.tree.map(jnp.asarray, case.text())
    features = jnp.concatenate([given["hidden"], *given["taps"]], axis=-1)
    objective = dataclasses.replace(EVERY, decay=case.DECAY)

    def value(params):
        whole, key = dataclasses.replace(head, params=params), jax.random.key(0)
        return peagle_loss(whole, target, given["tokens"], given["answer"], features, key, objective)

    assert_agree(value_and_gradients(value, head.params, in_files), expected)


def in_files(path: tuple) -> str:
    name = jax.tree_util.keystr(path, simple=True, separator=".").replace("scale", "weight")
    return name.replace("layers_", "layers.").replace("embedding", "weight")


def made() -> tuple[LM, Head3]:
    """The case's head, and a target with its output matrix alone."""
    layers = LlamaConfig(
        vocab_size=case.VOCABULARY,
        hidden_size=case.HIDDEN,
        intermediate_size=case.INNER,
        num_hidden_layers=2,
        num_attention_heads=case.HEADS,
        num_key_value_heads=case.KV_HEADS,
        head_dim=case.HEAD_DIM,
        max_position_embeddings=64,
        rms_norm_eps=case.EPS,
        rope=Rope(theta=case.THETA),
    )
    sizes = {"target_hidden_size": case.HIDDEN, "draft_vocab_size": len(case.DRAFTED), "own_embedding": True}
    mask = MaskConfig(token_id=case.MASK_TOKEN, num_drafted=case.DEPTHS)
    head = Head3.init(Eagle3Config(layers=layers, taps=(0, 1, 2), mask=mask, **sizes), jax.random.key(0))
    drawn = case.state()
    params = jax.tree_util.tree_map_with_path(lambda path, _: jnp.asarray(drawn[in_files(path)]), head.params)
    output = jnp.asarray(case.text()["output"])
    target = LM(params={"embed_tokens": {"embedding": output}, "lm_head": {"weight": output}}, config=layers)
    return target, dataclasses.replace(head, params=params, vocabulary=jnp.asarray(case.DRAFTED, jnp.int32))


def test_each_row_is_measured_on_what_it_would_draft():
    """With some anchors of some depths, and a window: what the head drafts from its cache at each of them."""
    target, _ = pair()
    head = peagle(layers=dataclasses.replace(CONFIG, tie_word_embeddings=False, sliding_window=4))
    tokens, objective = jnp.asarray(TOKENS), dataclasses.replace(PEAGLE, anchors=9, down_sample_ratio=0.6)
    features = jax.jit(lambda target: hidden_states(target, tokens, head.taps))(target)
    key = jax.random.key(3)
    args = head, target, tokens, jnp.asarray(ANSWER), features, key
    value, report = jax.jit(lambda *args: peagle_loss(*args, objective))(*args)
    hidden, taps = features[..., :16], tuple(jnp.split(features[..., 16:], 3, axis=-1))
    true = jax.nn.log_softmax(target.logits(hidden), axis=-1)

    @jax.jit
    def drafted(row: int, anchor: int) -> jax.Array:
        """Log-probabilities of a pass behind the text up to slot `anchor`."""
        streams = tuple(tap[row, None, :-1] for tap in taps)
        rows = head.embed(target, tokens[row, None, 1:]), head.features(streams[0], streams)
        out, kv = head.forward(*rows, *causal(1, 13), head.empty_cache(1, 0))
        length = jnp.full(1, anchor + 1, jnp.int32)
        cache = head.empty_cache(1, 13).write(kv, jnp.zeros(1, jnp.int32), length)
        return jax.nn.log_softmax(head.draft(target, out[:, anchor], length, cache, 4)[0], axis=-1)

    sample = choose_rows(jnp.asarray(ANSWER), 4, objective, jax.random.split(key)[0])
    losses: list[list[float]] = [[] for _ in range(4)]
    for row, column in zip(*np.nonzero(np.asarray(sample.chosen)), strict=True):
        anchor, depth = int(sample.anchor[row, column]), int(sample.depth[column])
        guessed = anchor + depth + 2
        if guessed < 14 and ANSWER[row, anchor + 1 : guessed + 1].all():
            said = np.asarray(drafted(row, anchor))[depth]
            losses[depth].append(-(np.exp(true[row, guessed - 1]) * said).sum())
    assert [len(each) for each in losses][0] == 17 and 0 < len(losses[3]) < len(losses[1]) < 17
    np.testing.assert_allclose(report.distribution, [np.mean(each) for each in losses], rtol=1e-4)
    np.testing.assert_allclose(value, np.concatenate(losses).mean(), rtol=1e-5)  # no decay: all rows weigh alike


def test_rows_are_chosen_in_nested_subsets():
    objective = dataclasses.replace(PEAGLE, anchors=13, down_sample_ratio=0.5, down_sample_ratio_min=0.3)
    answer = jnp.asarray(ANSWER)
    sample = choose_rows(answer, 4, objective, jax.random.key(0))
    assert sample.sizes == (13, 7, 4, 4)
    for row, few in enumerate((8, 9)):
        subsets = [
            set(np.asarray(sample.anchor[row])[np.asarray(sample.chosen[row] & (sample.depth == depth))].tolist())
            for depth in range(4)
        ]
        assert [len(each) for each in subsets] == [13, *(int(np.ceil(share * few)) for share in (0.5, 0.3, 0.3))]
        assert subsets[1] >= subsets[2] >= subsets[3]
        assert all(ANSWER[row, anchor + 1 : anchor + 3].all() for anchor in subsets[1])
    other = choose_rows(answer, 4, objective, jax.random.key(1))
    assert not np.array_equal(sample.anchor, other.anchor)


def test_what_a_row_sees():
    """The page's example: text up to the anchor, and the own rollout up to itself."""
    anchor = jnp.array([[0, 1, 2, 3, 4, 0, 2, 3, 2]], jnp.int32)
    depth = jnp.array([0, 0, 0, 0, 0, 1, 1, 1, 2], jnp.int32)
    sample = Sample(anchor, depth, jnp.ones((1, 9), bool), (5, 3, 1))
    expected = np.zeros((9, 9), bool)
    expected[:5, :5] = np.tri(5)
    for row, sees in ((5, [0, 5]), (6, [0, 1, 2, 6]), (7, [0, 1, 2, 3, 7]), (8, [0, 1, 2, 6, 8])):
        expected[row, sees] = True
    np.testing.assert_array_equal(sample.visible[0], expected)


@pytest.mark.proof
def test_it_learns_one_conversation():
    """Until it drafts all of it: through the same update as EAGLE's heads, with kept and with recomputed values."""
    target, _ = pair()
    tokens, answer = jnp.asarray(TOKENS[:1]), jnp.asarray(np.arange(14)[None] >= 3)
    for at in range(4, 14):  # the answer is the target's own
        hidden = target.causal(tokens).hidden[:, at - 1]
        tokens = tokens.at[:, at].set(jnp.argmax(target.logits(hidden[:, None])[:, 0], axis=-1))
    rule = optimizer.make(OptimizerConfig(rate=1e-2, warmup=0, clip="none"), 200)
    settings = HeadConfig(method="peagle", layers=2, mask_token_id=28)
    head = first(settings, target, None, jax.random.key(0), steps=4)
    bare, text, losses = without_params(head), (tokens[None], answer[None]), {}
    for remat, updates in ((True, 3), (False, 150)):
        state = begin(head, rule, jax.random.key(0))
        for count in range(updates):
            state, outcome = update(state, bare, target, *text, rule=rule, objective=EVERY, remat=remat)
            losses[remat, count] = float(outcome.loss)
    np.testing.assert_allclose([losses[True, i] for i in range(3)], [losses[False, i] for i in range(3)], rtol=1e-3)
    assert accepted_length(np.asarray(outcome.report.agreement)) > 4.9, "of 5 with a depth of 4"
    drafter = PEagle(head=dataclasses.replace(head, params=state.params), policy=DynamicTree(5, 3, 1))
    prompt = jnp.pad(tokens[:, :4], ((0, 0), (0, 24)))  # the prefill draws the token behind it: nine are left
    request, mode = params_of([4], 10), {"mode": sampling.GREEDY}
    decoded = compiled_prefill()(target, drafter, request, prompt, **mode, slots=20, chunk=8, logprobs=False)
    decoded = compiled_advance()(target, drafter, request, decoded, jnp.int32(9), **mode)
    np.testing.assert_array_equal(decoded.tokens[:, :14], tokens)
    assert steps_by_row(decoded) == 2


def test_features_are_not_guessed():
    target, _ = pair()
    objective = dataclasses.replace(EVERY, feature_weight=1.0)
    text = jnp.asarray(TOKENS), jnp.asarray(ANSWER), jnp.zeros((2, 14, 64)), jax.random.key(0)
    with pytest.raises(ValueError, match="feature_weight=1.0 with a P-EAGLE head; expected 0"):
        peagle_loss(peagle(), target, *text, objective)


def test_the_head_that_a_run_begins_with(tmp_path):
    target, _ = pair()
    settings = HeadConfig(method="peagle", layers=2, mask_token_id=28, taps=(0, 2))
    head = first(settings, target, np.array([3, 5, 17], np.int32), jax.random.key(0), steps=5)
    assert isinstance(head, Head3) and head.config.mask == MaskConfig(token_id=28, num_drafted=5)
    assert head.taps == (0, 2) and head.config.draft_vocab_size == 3
    np.testing.assert_array_equal(head.params["embed_tokens"]["embedding"], target.table)
    head.params["embed_tokens"]["embedding"] = head.params["embed_tokens"]["embedding"].at[28].add(1.0)
    save_head(head, tmp_path / "head", target=target)
    again = first(HeadConfig(method="peagle", start=str(tmp_path / "head")), target, None, jax.random.key(1))
    assert again.config == head.config
    jax.tree.map(np.testing.assert_array_equal, again.params, head.params)
    with pytest.raises(ValueError, match="holds a head of peagle and head.method is eagle3"):
        first(HeadConfig(method="eagle3", start=str(tmp_path / "head")), target, None, jax.random.key(1))
    assert load_head(tmp_path / "head", target).num_drafted == 5


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="method peagle without head.mask_token_id"):
        HeadConfig(method="peagle")
    with pytest.raises(ValueError, match="head.norm_output with method peagle; expected eagle3"):
        HeadConfig(method="peagle", mask_token_id=3, norm_output=True)
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"objective.down_sample_ratio={share}; expected a share"):
            dataclasses.replace(PEAGLE, down_sample_ratio=share)
