"""GPTQ: both versions, 4 and 8 bits, symmetric or not, inputs in the model's order or sorted."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
from published import DOWN, Published

from eagle_jax.ops.quantized import QuantType

GROUP = 32
STATED = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}


def published_as(bits=4, sym=True, version=1, shuffled=False, lowest=1, group=GROUP, bias=False):
    """`lowest` is the least zero point; version 1 stores it less 1."""

    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        each = size if group is None else group
        groups = np.arange(size) // each
        if shuffled:
            groups = np.random.default_rng(size).permutation(groups)  # alike for matrices that read the same rows
        codes = rng.integers(0, 2**bits, (out, size))
        zeros = rng.integers(lowest, 2**bits, (out, size // each))
        if sym:
            zeros[:] = 2 ** (bits - 1)
        scales = published.drawn_scales(rng, zeros.shape)
        tensors = {
            "qweight": published.rows_of_words(codes, bits).T,
            "qzeros": published.rows_of_words(zeros.T - (version == 1), bits),
            "scales": scales.T,
            "g_idx": groups.astype(np.int32),
        }
        if bias:
            tensors["bias"] = np.zeros(out, np.float16)
        return Published(tensors, published.by_group(codes, zeros, scales, groups))

    return publish


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "desc_act"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sym", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_those_of_the_rule(tmp_path, bits, sym, version, shuffled):
    stated = STATED | {"bits": bits, "sym": sym, "desc_act": shuffled}
    stated |= {"checkpoint_format": "gptq_v2"} if version == 2 else {}
    folder = published.write(tmp_path, published_as(bits, sym, version, shuffled), stated)
    down = published.check(folder)[DOWN]
    assert down.quant_type == QuantType(bits, GROUP, has_minima=not sym, is_ordered=shuffled)
    assert down.scales.dtype == (np.float16 if sym else np.float32)


def test_one_group_and_biases_of_zeros(tmp_path):
    folder = published.write(tmp_path, published_as(group=None, bias=True), STATED | {"group_size": -1})
    assert published.check(folder)[DOWN].quant_type == QuantType(4)
    published.changed(folder, lambda tensors: tensors[f"{DOWN}.bias"].fill(1))
    with pytest.raises(ValueError, match=f"config does not describe: {DOWN}.bias"):
        published.loaded(folder)


def test_biases_that_the_model_has_are_read(tmp_path):
    folder = published.write(tmp_path, published_as(bias=True), STATED, attention_bias=True, mlp_bias=True)
    lm = published.loaded(folder)
    assert not np.any(lm.params["layers_0"]["self_attn"]["q_proj"]["bias"])


def test_experts_are_stacked_with_their_orders(tmp_path):
    mixture = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 3}
    router = "model.layers.0.block_sparse_moe.gate"
    folder = published.write(
        tmp_path, published_as(sym=False, shuffled=True), STATED | {"sym": False, "desc_act": True},
        floats=(published.EMBEDDING, published.OUTPUT, router), **mixture,
    )  # fmt: skip
    published.check(folder)
    stack = published.loaded(folder).params["layers_0"]["mlp"]["experts"]["down"]
    assert stack.order.shape == (3, published.INTERMEDIATE)


def test_a_model_of_another_width_in_one_module(tmp_path):
    def publish(rng, out, size):
        return published_as(8 if size == published.INTERMEDIATE else 4)(rng, out, size)

    dynamic = {r"-:lm_head": {}, r"+:.*\.down_proj": {"bits": 8}, r".*": {"bits": 4}}
    folder = published.write(tmp_path, publish, STATED | {"dynamic": dynamic})
    assert published.check(folder)[DOWN].bits == 8


def test_zero_points_that_wrapped_are_read_as_their_writer_meant_them_or_not_at_all(tmp_path):
    """Version 1 of a zero point of 0, as GPTQModel writes it: 1 is taken from all numbers of a word at once."""
    stated = STATED | {"sym": False}
    folder = published.write(tmp_path, published_as(sym=False, version=2, lowest=0), stated)

    def first_version(tensors):
        for name in tensors:
            if name.endswith("qzeros"):
                tensors[name] = (tensors[name].view(np.uint32) - np.uint32(0x11111111)).view(np.int32)

    published.changed(folder, first_version)
    with pytest.raises(ValueError, match="qzeros .* stores the zero point 15.*differ in what it means; look for"):
        published.loaded(folder)
    published.state(tmp_path, stated | {"meta": {"quantizer": ["gptqmodel:2.0.0"]}})
    published.check(folder)


@pytest.mark.parametrize(
    ("end", "change"),
    [
        ("qweight", lambda x: x >> 4),
        ("qzeros", lambda x: x - 0x11111111),
        ("scales", lambda x: np.roll(x, 1, 0)),
        ("g_idx", lambda x: np.roll(x, 1)),
    ],
)
def test_what_the_numbers_depend_on(tmp_path, end, change):
    folder = published.write(tmp_path, published_as(sym=False, lowest=2), STATED | {"sym": False})
    assert published.depends_on(folder, end, change)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": 3}, "bits=3 of GPTQ is not read; expected 4, 8"),
        ({"bits": 2}, "bits=2 of GPTQ"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format='marlin' of GPTQ is not read"),
        ({"dynamic": {"+:.*": {"bits": 2}}}, r"bits=2 of GPTQ for \+:\.\*"),
        (
            {"dynamic": {"+:(": {}}},
            r"'\(' among the modules .* is no regular expression",
        ),
        ({"adapter": {"rank": 8}}, "adapter=.* of GPTQ is not read; expected none"),
        ({"dynamic": {"-:.*down_proj": {}}}, "down_proj in dynamic, and .* quantized by GPTQ"),
        ({"bits": 8}, r"expected those of GPTQ in 8 bits|scales for"),
    ],
)
def test_other_layouts_are_refused(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        published.loaded(published.write(tmp_path, published_as(), STATED | changes))


def test_zero_points_and_groups_that_contradict_the_config_are_refused(tmp_path):
    folder = published.write(tmp_path, published_as(sym=False), STATED)
    with pytest.raises(ValueError, match="other zero points than 8, and the config states sym=true; set it to false"):
        published.loaded(folder)
    published.changed(folder, lambda tensors: tensors[f"{DOWN}.g_idx"].fill(0))
    with pytest.raises(ValueError, match="g_idx .* does not part 96 inputs into groups of 32"):
        published.loaded(folder)


def test_logits_do_not_depend_on_how_the_inputs_are_stored(tmp_path):
    """The same weights with inputs sorted by group, and as floats."""
    stated = STATED | {"desc_act": True}
    folder = published.write(tmp_path, published_as(shuffled=True), stated)
    lm = published.loaded(folder)
    assert any(leaf.dtype == np.int32 for leaf in jax.tree.leaves(lm.params))
    tensors = {name: value for name, value in published.tensors_of(folder).items() if name.endswith("weight")}
    tensors = {name: value for name, value in tensors.items() if not name.endswith("qweight")}
    floats = tensors | {f"{module}.weight": value for module, value in folder.dense.items()}
    (tmp_path / "floats").mkdir()
    published.save(tmp_path / "floats", floats)
    published.state(tmp_path / "floats", None)
    tokens = jnp.arange(8)[None]
    both = [lm(tokens)[1], published.loaded(published.Folder(tmp_path / "floats", {}))(tokens)[1]]
    np.testing.assert_allclose(*both, rtol=2e-3, atol=2e-3)


def test_a_folder_of_the_old_tool_states_it_in_a_file_of_its_own(tmp_path):
    folder = published.write(tmp_path, published_as(sym=False), None)
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": GROUP, "sym": False}))
    published.check(folder)
