"""Rounded weights in files: what others pack is read, what is written is read back bit for bit, bad files are named."""

import dataclasses
import json
import os
import pathlib
import resource
import shutil
import signal
import tempfile

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import eagle_jax
from eagle_jax.configs.heads import DFlashConfig, MaskConfig
from eagle_jax.configs.target import Experts
from eagle_jax.converters import convert, describe, load_head, load_target, packed, quantize, save_head, save_target
from eagle_jax.converters.quantized.unpacking import around_zero, fields
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.layout import for_files
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import flat, quantize_params, scheme_of
from eagle_jax.ops.quantized import QuantArray
from eagle_jax.testing import TINY, synthetic_head3, synthetic_pair
from tests.converters.folders import same_leaves

CONFIG = dataclasses.replace(TINY, vocab_size=64, num_hidden_layers=1, intermediate_size=64)
MIXTURE = dataclasses.replace(
    CONFIG, experts=Experts(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=64, norm_topk_prob=True)
)


@pytest.fixture(scope="module")
def pair():
    return synthetic_pair(CONFIG)


@pytest.fixture(scope="module")
def folders(pair, tmp_path_factory) -> pathlib.Path:
    """`target`, a head of four kinds, and a mixture of experts, in floats."""
    root = tmp_path_factory.mktemp("floats")
    save_target(pair[0], root / "target")
    save_head(pair[1], root / "head")
    save_head(synthetic_head3(pair[0], taps=(0, 1)), root / "head3")
    layers = dataclasses.replace(CONFIG, num_hidden_layers=1, qk_norm=True)
    dflash = DFlashConfig(layers=layers, taps=(0, 1), target_hidden_size=32, block_size=4, mask_token_id=5)
    save_head(DFlash.init(dflash, jax.random.key(3)), root / "dflash")
    peagle = synthetic_head3(pair[0], taps=(0, 1), mask=MaskConfig(token_id=5, num_drafted=3), own_embedding=True)
    save_head(peagle, root / "peagle", target=pair[0], target_name=str(root / "target"))
    save_target(LM.init(MIXTURE, jax.random.key(0)), root / "mixture")
    (root / "target" / "chat_template.jinja").write_text("{{ messages }}")
    return root


# Words by compressed-tensors 0.20: pack_to_int32(torch.arange(-8, 8).reshape(2, 8), 4), and of 10 columns by 8 bits.
FOUR_BITS = (np.arange(-8, 8, dtype=np.int8).reshape(2, 8), [[1985229328], [-19088744]])
EIGHT_BITS = (np.asarray([[-128, -1, 0, 1, 127, 5, -5, 100, 7, -7]], np.int8), [[-2122285312, -461666817, 31111]])


@pytest.mark.parametrize("bits, codes, words", [(4, *FOUR_BITS), (8, *EIGHT_BITS)])
def test_words_are_those_of_compressed_tensors(bits, codes, words):
    made = packed.pack(codes, bits)
    np.testing.assert_array_equal(made, np.asarray(words, np.int32))
    np.testing.assert_array_equal(around_zero(fields(made, bits)[:, : codes.shape[1]], bits), codes)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_target_rounded_while_it_is_read_saved_and_read_again_is_the_same(folders, tmp_path, scheme):
    rounded = load_target(folders / "target", scheme=scheme_of(scheme))
    same_leaves(rounded.params, quantize_params(load_target(folders / "target").params, scheme_of(scheme)))
    save_target(rounded, tmp_path / "saved")
    same_leaves(load_target(tmp_path / "saved").params, rounded.params)
    quantize(folders / "target", tmp_path / "written", scheme)
    same_leaves(load_target(tmp_path / "written").params, rounded.params)
    assert (tmp_path / "written" / "chat_template.jinja").exists()
    saved, written = (load_file(tmp_path / name / "model.safetensors") for name in ("saved", "written"))
    same_leaves(saved, written)
    said = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("saved", "written")]
    assert said[0]["quantization_config"] == said[1]["quantization_config"]
    groups = {
        group["targets"][0]: group["weights"] for group in said[0]["quantization_config"]["config_groups"].values()
    }
    assert groups["Linear"]["num_bits"] == int(scheme[3])
    assert ("lm_head" in groups) == (scheme == "int4")


def test_a_disk_that_fills_up_leaves_no_model_without_its_tokenizer(folders, tmp_path, monkeypatch):
    def full(*paths):
        raise OSError("no space left on device")

    monkeypatch.setattr("eagle_jax.converters.writing.shutil.copy", full)
    with pytest.raises(OSError, match="no space left"):
        quantize(folders / "target", tmp_path / "int8", "int8")
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_for_the_weights_is_named(folders, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="(?i)file too large") as caught:
            quantize(folders / "target", tmp_path / "int8", "int8")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert caught.value.filename == str(tmp_path / "int8") and not list(tmp_path.iterdir())


def test_a_tokenizer_that_lies_in_the_folder_already_is_not_replaced(folders, tmp_path):
    (tmp_path / "int8").mkdir()
    template = tmp_path / "int8" / "chat_template.jinja"
    template.write_text("precious")
    with pytest.raises(FileExistsError, match="chat_template.jinja is there already, and would be replaced; give anot"):
        quantize(folders / "target", tmp_path / "int8", "int8")
    assert template.read_text() == "precious" and list(tmp_path.rglob("*.*")) == [template]
    shutil.copy(folders / "target" / "chat_template.jinja", template)
    quantize(folders / "target", tmp_path / "int8", "int8")


def test_groups_that_do_not_divide_are_refused_before_anything_is_read(folders):
    with pytest.raises(ValueError, match="groups of 128 do not divide the 64 inputs of layers_0/mlp/down_proj/weight"):
        load_target(folders / "target", scheme=scheme_of("int4-128"))


def test_what_is_rounded_is_described(folders, tmp_path):
    quantize(folders / "target", tmp_path / "int4", "int4")
    described = describe(tmp_path / "int4")
    assert described.problem is None and described.kind == "target"
    matrices = {name: count for name, count in described.dtypes.items() if name.startswith("int")}
    assert matrices["int8"] == CONFIG.vocab_size * CONFIG.hidden_size and matrices["int4"] > 0
    assert described.parameters == describe(folders / "target").parameters


def test_experts_are_rounded_one_by_one_and_routers_stay(folders, tmp_path):
    quantize(folders / "mixture", tmp_path / "int4", "int4")
    rounded = load_target(tmp_path / "int4")
    same_leaves(rounded.params, load_target(folders / "mixture", scheme=scheme_of("int4")).params)
    experts = rounded.params["layers_0"]["mlp"]["experts"]
    assert all(isinstance(stack, QuantArray) and stack.bits == 4 for stack in experts.values())
    said = json.loads((tmp_path / "int4" / "config.json").read_text())["quantization_config"]
    assert said["ignore"] == ["model.layers.0.block_sparse_moe.gate"]


@pytest.mark.parametrize("name", ["head", "head3", "dflash", "peagle"])
def test_heads_too_and_they_change_their_format_as_they_are(folders, pair, tmp_path, name):
    quantize(folders / name, tmp_path / "int8", "int8")
    rounded = load_head(tmp_path / "int8", pair[0])
    same_leaves(rounded.params, load_head(folders / name, pair[0], scheme=scheme_of("int8")).params)
    assert rounded.dtype == np.float32
    save_head(rounded, tmp_path / "saved", target=pair[0], target_name=str(folders / "target"))
    same_leaves(load_head(tmp_path / "saved", pair[0]).params, rounded.params)
    convert(tmp_path / "int8", tmp_path / "speculators", "speculators", target=folders / "target")
    same_leaves(load_head(tmp_path / "speculators", pair[0]).params, rounded.params)


def test_a_masks_embedding_in_a_file_of_its_own_comes_along(folders, tmp_path):
    torch = pytest.importorskip("torch")
    shutil.copytree(folders / "dflash", tmp_path / "dflash")
    torch.save(torch.ones(32), tmp_path / "dflash" / "mask_embedding.pt")
    quantize(tmp_path / "dflash", tmp_path / "int8", "int8")
    target = load_target(folders / "target")
    assert np.all(load_head(tmp_path / "int8", target).params["mask_embedding"] == 1)


def test_weights_go_rounded_into_their_shards(folders):
    alone, spread = (eagle_jax.load(folders / "target", mesh=mesh, quantize="int4") for mesh in (None, "model:2"))
    down = spread.target.params["layers_0"]["mlp"]["down_proj"]["weight"].data
    assert down.codes.addressable_shards[0].data.shape[0] == CONFIG.intermediate_size // 2
    assert down.scales.addressable_shards[0].data.shape[0] == CONFIG.intermediate_size // 32 // 2
    same_leaves(*(jax.tree.map(np.asarray, for_files(model.target.params)) for model in (spread, alone)))


def test_the_float_model_is_never_whole_in_memory(folders, monkeypatch):
    """Counted while each weight is rounded: floats of one parameter, beside those that stay floats."""
    from eagle_jax.models import quant

    most, quantize = [], quant.quantize

    def watched(leaf, quant_type, dtype):
        made = jax.block_until_ready(quantize(leaf, quant_type, dtype))
        floats = [x for x in jax.live_arrays() if x.dtype == np.float32 and x.ndim == 2 and x.size >= 32 * 32]
        most.append(sum(x.size for x in floats if x.shape[1] > 1))
        return made

    monkeypatch.setattr(quant, "quantize", watched)
    before = sum(x.size for x in jax.live_arrays() if x.dtype == np.float32 and x.ndim == 2 and x.size >= 32 * 32)
    lm = load_target(folders / "target", scheme=scheme_of("int8/none"))
    rounded = [leaf for _, leaf in flat(lm.params) if isinstance(leaf, QuantArray)]
    stay = 2 * CONFIG.vocab_size * CONFIG.hidden_size
    assert len(most) == len(rounded)
    assert max(most) - before <= stay + max(leaf.size for leaf in rounded)


def says(folder: pathlib.Path, **changes) -> None:
    said = json.loads((folder / "config.json").read_text())
    said["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(said))


def test_bad_folders_are_refused_in_one_sentence(folders, tmp_path):
    quantize(folders / "target", good := tmp_path / "good", "int8")
    for again in (
        lambda: load_target(good, scheme=scheme_of("int4")),
        lambda: quantize(good, tmp_path / "new", "int4"),
    ):
        with pytest.raises(ValueError, match="quantized to 8 bits already, and 4 were asked for; leave quantize out"):
            again()
    with pytest.raises(FileExistsError, match="holds a model already"):
        quantize(folders / "target", good, "int8")
    assert not (tmp_path / "new").exists()

    group = json.loads((good / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    for changes, said in (
        ({"format": "marlin-24"}, "format='marlin-24' of compressed-tensors is not read"),
        ({"config_groups": {"group_0": group | {"weights": {"num_bits": 3}}}}, "num_bits=3"),
        ({"quant_method": "hqq"}, "quantized by hqq, which is not supported"),
    ):
        says(good, **changes)
        with pytest.raises(ValueError, match=said):
            load_target(good)
        says(good, format="pack-quantized", config_groups={"group_0": group}, quant_method="compressed-tensors")

    stated = json.loads((good / "config.json").read_text())
    for changes, said in (
        ({"quantization_config": {"quant_method": "aqlm", "bits": 2}}, "in 2 bits by aqlm"),
        ({"quantization_config": {"quant_method": "new"}}, "quantized by new, which is not supported"),
        ({"quantization": {"group_size": 64, "bits": 2}, "quantization_config": {"bits": 2}}, "bits=2 of MLX is not"),
    ):
        (good / "config.json").write_text(json.dumps(stated | changes))
        with pytest.raises(ValueError, match=said):
            load_target(good)
    (good / "config.json").write_text(json.dumps(stated))

    tensors = load_file(good / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    for changes, said in (
        ({f"{name}_scale": None}, "has .*_packed and no .*_scale"),
        ({f"{name}_zero_point": np.zeros((1, 1), np.int32)}, "expected numbers of 8 bits packed along 32 outputs"),
        ({f"{name}_shape": np.asarray([32, 96])}, "expected int32 words of 4 or 8 bits"),
        ({f"{name}_scale": np.ones((32, 5), np.float32)}, "scales for 5 groups of 64 inputs"),
    ):
        kept = {key: value for key, value in (tensors | changes).items() if value is not None}
        save_file(kept, good / "model.safetensors")
        with pytest.raises(ValueError, match=said):
            load_target(good)


def test_a_folder_may_be_a_link_or_a_disk_of_its_own(folders, tmp_path):
    """Names are not moved from disk to disk, so nothing may be put beside a folder that is there."""
    disk = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm")) if os.access("/dev/shm", os.W_OK) else tmp_path / "disk"
    try:
        (disk / "empty").mkdir(parents=True)
        for name, end in (("there", disk / "empty"), ("dangling", disk / "new")):
            (tmp_path / name).symlink_to(end)
            quantize(folders / "target", tmp_path / name, "int8")
            assert {path.name for path in end.iterdir()} == {"config.json", "model.safetensors", "chat_template.jinja"}
        assert {path.name for path in disk.iterdir()} == {"empty", "new"}
    finally:
        shutil.rmtree(disk)
