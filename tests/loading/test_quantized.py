"""A rounded target is a target: every drafter's text is its own plain text, on one device and on several."""

import dataclasses

import jax
import numpy as np
import pytest

import eagle_jax
from eagle_jax.api import with_head
from eagle_jax.converters import save_head, save_target
from eagle_jax.models.layout import for_files
from eagle_jax.models.quant import flat, is_quantized
from eagle_jax.ops.quantized import QuantArray
from eagle_jax.testing import TINY, synthetic_pair

CONFIG = dataclasses.replace(TINY, vocab_size=64, num_hidden_layers=1, intermediate_size=64)
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
ASKED = dict(max_new_tokens=12, tree=(4, 1, 2), seed=[1, 2, 3])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    target, head = synthetic_pair(CONFIG)
    save_target(target, root / "target")
    save_head(head, root / "head")
    return root / "target", root / "head"


def ids(model, drafter, temperature):
    """Greedy and sampled rows share one program."""
    results = eagle_jax.generate(model, PROMPTS, drafter=drafter, temperature=temperature, **ASKED)
    return [result.token_ids for result in results], results


def bits_of(model) -> set[int]:
    """What its matrices are rounded to."""
    return {leaf.bits for _, leaf in flat(for_files(model.params)) if isinstance(leaf, QuantArray)}


@pytest.mark.matrix
@pytest.mark.parametrize("quantize, meshes", [("int8", ["data:1,model:4"]), ("int4/int4", [])])
def test_speculative_text_is_the_plain_text_of_the_same_rounded_target(folders, quantize, meshes):
    alone = eagle_jax.load(*folders, quantize=quantize)
    assert is_quantized(for_files(alone.target.params)) and is_quantized(for_files(alone.head.params))
    temperature = [0.0, 1.0, 1.0]
    plain, _ = ids(alone, "none", temperature)
    drafted, results = ids(alone, "eagle", temperature)
    assert drafted == plain
    assert max(result.stats.mean_accepted_length for result in results) > 1.2
    for mesh in meshes:  # four copies of two kv heads, rounded weights in their shards
        spread = eagle_jax.load(*folders, mesh=mesh, quantize=quantize)
        assert ids(spread, "eagle", temperature)[0] == plain
        down = spread.target.params["layers_0"]["mlp"]["down_proj"]["weight"].data
        assert down.codes.addressable_shards[0].data.shape == (CONFIG.intermediate_size // 4, CONFIG.hidden_size)


def test_a_rounded_model_tells_how_many_numbers_it_has(folders):
    floats, rounded = (eagle_jax.load(*folders, quantize=quantize) for quantize in (None, "int4/int4"))
    assert repr(rounded) == repr(floats)


def test_target_and_head_are_rounded_on_their_own(folders):
    model = eagle_jax.load(folders[0], quantize="int8")
    head = with_head(model, folders[1]).head
    assert is_quantized(for_files(model.target.params)) and not is_quantized(for_files(head.params))
    head = with_head(model, folders[1], quantize="int4").head
    assert bits_of(head) == {4}


@pytest.mark.proof
def test_what_drafts_may_be_rounded_alone_and_every_text_stays(folders):
    whole = eagle_jax.load(*folders, draft=folders[0])
    model = eagle_jax.load(*folders, draft=folders[0], quantize="draft:int4")
    jax.tree.map(np.testing.assert_array_equal, model.target, whole.target)
    for drafting in (model.head, model.draft):
        assert 4 in bits_of(drafting)
    again = with_head(model, folders[1], quantize="draft:int4").head
    jax.tree.map(np.testing.assert_array_equal, again, model.head)
    temperature = [0.0, 1.0, 1.0]
    plain, _ = ids(whole, "none", temperature)
    assert ids(model, "eagle", temperature)[0] == plain
    assert ids(model, "draft-model", temperature)[0] == plain


def test_a_folder_that_is_rounded_loads_like_any_other(folders, tmp_path):
    eagle_jax.api.quantize(folders[0], tmp_path / "int8", "int8")
    kept, made = eagle_jax.load(tmp_path / "int8"), eagle_jax.load(folders[0], quantize="int8")
    assert jax.tree.structure(kept.target) == jax.tree.structure(made.target)
    jax.tree.map(np.testing.assert_array_equal, kept.target, made.target)


def test_bad_values_are_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(ValueError, match="quantize='int5' is not known; expected"):
        eagle_jax.load(tmp_path / "nothing", quantize="int5")


@pytest.mark.proof
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_same_seed_same_text_on_the_shipped_pair(quantize):
    model = eagle_jax.load(dtype="float32", quantize=quantize)
    question = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many apples does he have?"}]
    asked = dict(max_new_tokens=48, temperature=[0.0, 1.0], seed=[1, 2])
    plain = eagle_jax.generate(model, [question] * 2, drafter="none", **asked)
    drafted = eagle_jax.generate(model, [question] * 2, drafter="eagle", tree="eagle1", **asked)
    assert [result.token_ids for result in drafted] == [result.token_ids for result in plain]
    passes = sum(result.stats.steps for result in drafted)
    committed = sum(result.stats.mean_accepted_length * result.stats.steps for result in drafted)
    assert committed / passes > 2, "the rounded head hardly drafts"
