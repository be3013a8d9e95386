"""GGUF files: the same model as the folder it was made of, and what is refused."""

import functools
import json
import operator
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax import api
from eagle_jax.converters import convert_gguf, describe, load_target, quantize, resolve
from eagle_jax.converters.gguf.config import config_entries
from eagle_jax.models.quant import scheme_of
from eagle_jax.models.rope import frequencies
from eagle_jax.ops.quantized import QuantArray, QuantType, dense
from eagle_jax.text.tokenizers import tokenizer_in
from tests.converters import folders
from tests.converters.folders import refused
from tests.converters.gguf.gguf_files import SIZES, gguf, write

GEMMA2 = {
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 16,
    "head_dim": 16,
    "sliding_window": 8,
}
GEMMA_WINDOW = {"attention.sliding_window": 8}
FAMILIES = {
    "llama-tied": ("llama", {"tie_word_embeddings": True}, {}),
    "llama-own": ("llama", {"tie_word_embeddings": False}, {}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama-linear": (
        "llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama-yarn": (
        "llama",
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 16},
    ),
    "mistral": (
        "llama",
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8},
        {"attention.sliding_window": 8},
    ),
    "qwen2": ("qwen2", {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}, {}),
    "qwen3": ("qwen3", {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32}, {}),
    "gemma2": (
        "gemma2",
        GEMMA2,
        GEMMA_WINDOW | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        "gemma3",
        GEMMA2 | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]},
        GEMMA_WINDOW,
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_is_that_of_the_folder(tmp_path, name):
    """Config and weights, to one rounding of Gemma's norms."""
    architecture, changes, metadata = FAMILIES[name]
    model = folders.target(**SIZES | changes)
    stated = {f"{architecture}.{key}": value for key, value in metadata.items()}
    path = write(tmp_path / "m.gguf", model, architecture, metadata=stated)
    read = load_target(path)
    assert read.config == model.config
    tolerance = 1e-7 if "gemma" in architecture else 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance), read.params, model.params)


@pytest.mark.parametrize(("type", "bits"), [("Q8_0", 8), ("Q4_0", 4)])
def test_integers_are_kept(tmp_path, llama, type, bits):
    """What the gguf library expands is exactly what the integers and scales stand for, or what `"none"` loads."""
    path = write(tmp_path / "m.gguf", llama, type=type)
    params = load_target(path, dtype="float32").params
    floats = load_target(path, dtype="float32", scheme=scheme_of("none")).params
    kind = gguf.GGMLQuantizationType[type]
    expected = folders.tensors(llama)
    for name, place in {
        "model.layers.1.self_attn.q_proj.weight": ("layers_1", "self_attn", "q_proj", "weight"),
        "model.layers.1.mlp.down_proj.weight": ("layers_1", "mlp", "down_proj", "weight"),
        "model.embed_tokens.weight": ("embed_tokens", "embedding"),
    }.items():
        weight, expanded = (functools.reduce(operator.getitem, place, tree) for tree in (params, floats))
        assert isinstance(weight, QuantArray) and weight.quant_type == QuantType(bits, 32).over(weight.shape[1])
        assert weight.scales.dtype == jnp.float16
        values = gguf.dequantize(gguf.quantize(expected[name], kind), kind)
        np.testing.assert_array_equal(dense(weight), values)
        np.testing.assert_array_equal(expanded, values)


def test_a_folder_of_integers_is_made_of_it(tmp_path, llama):
    """Of floats, and of blocks where a second rounding is asked for."""
    path = write(tmp_path / "floats.gguf", llama)
    quantize(path, tmp_path / "int8", "int8")
    expected = load_target(path, scheme=scheme_of("int8"))
    jax.tree.map(np.testing.assert_array_equal, load_target(tmp_path / "int8").params, expected.params)
    path = write(tmp_path / "m.gguf", llama, type="Q4_0")
    with refused(ValueError, "m.gguf holds weights of that width already", "load the file"):
        quantize(path, tmp_path / "int4", "int4")
    with refused(ValueError, "m.gguf", "quantized to 4 bits already, and 8 were asked for"):
        quantize(path, tmp_path / "again", "int8")
    quantize(path, tmp_path / "again", "int8", requantize=True)
    expected = load_target(path, dtype="bfloat16", scheme=scheme_of("requantize:int8")).params
    again = load_target(tmp_path / "again").params
    np.testing.assert_array_equal(
        again.pop("embed_tokens")["embedding"], dense(expected.pop("embed_tokens")["embedding"])
    )
    jax.tree.map(np.testing.assert_array_equal, again, expected)


def test_the_factors_of_llama_3_1(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    model = folders.target(**SIZES, rope_theta=500000.0, rope_scaling=scaling, num_hidden_layers=1)
    plain = folders.config(**SIZES, rope_theta=500000.0)
    factors = frequencies(plain.rope, 16) / frequencies(model.config.rope, 16)
    path = write(tmp_path / "m.gguf", model, extra={"rope_freqs.weight": factors.astype(np.float32)})
    assert load_target(path).config == model.config
    path = write(tmp_path / "n.gguf", model, extra={"rope_freqs.weight": np.full(8, 2, np.float32)})
    with refused(ValueError, "rope_freqs.weight", "Llama 3.1"):
        config_entries(path)


def test_a_folder_of_it(tmp_path, llama, run_cli):
    """The command writes what transformers and `load` read: the same weights in bfloat16, tokenizer, stop tokens."""
    path, folder = write(tmp_path / "m.gguf", llama), tmp_path / "folder"
    shown = run_cli("convert", str(path), str(folder))
    assert (shown.exit_code, shown.stdout) == (0, f"Wrote {folder}.\n")
    assert json.loads((folder / "generation_config.json").read_text()) == {"bos_token_id": 1, "eos_token_id": [0, 2]}
    read = load_target(folder)
    assert read.config == llama.config and read.dtype == jnp.bfloat16
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.bfloat16)), read.params, llama.params)
    left, right = tokenizer_in(path), tokenizer_in(folder)
    text = "hello  world 12\n<|im_end|>é"
    assert left(text).input_ids == right(text).input_ids
    chat = [{"role": "user", "content": "he"}]
    for tokenizer in (left, right):
        assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|im_start|>he<|im_end|>"
    with refused(FileExistsError, "holds a model already"):
        convert_gguf(path, folder)


def test_the_command_tells_what_became_of_the_types(tmp_path, llama, run_cli):
    shown = json.loads(run_cli("inspect", str(write(tmp_path / "m.gguf", llama, type="Q8_0")), "--json").stdout)
    assert (shown["kind"], shown["format"], shown["problem"]) == ("target", "llama", None)
    assert set(shown["dtypes"]) == {"float32", "Q8_0, kept as int8, a scale for each 32 inputs"}
    assert len(shown["kinds"]) == 2


@pytest.mark.parametrize("type", ["F32", "Q8_0"])
def test_generation(tmp_path, llama, type):
    """The text is that of the folder made of the file, with integers too, and a turn's end is a stop token."""
    path = write(tmp_path / "m.gguf", llama, type=type)
    convert_gguf(path, tmp_path / "folder", dtype="float32")
    answers = []
    for source in (path, tmp_path / "folder"):
        model = api.load(str(source), dtype="float32")
        assert model.stop_ids == (0, 2)
        answers.append(api.generate(model, "hello", max_new_tokens=4, temperature=0.0).token_ids)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "mamba"}, ("architecture 'mamba'", "llama")),
        ({"extra": {"blk.0.ssm_a": np.ones(4, np.float32)}}, ("blk.0.ssm_a", "not known")),
        ({"extra": {"blk.0.attn_q.bias": np.ones(64, np.int32)}}, ("blk.0.attn_q.bias", "I32")),
        ({"metadata": {"llama.logit_scale": 2.0}}, ("llama.logit_scale 2.0", "not known")),
        ({"metadata": {"llama.expert_count": 8}}, ("llama.expert_count 8",)),
        ({"metadata": {"llama.rope.dimension_count": 8}}, ("rope.dimension_count 8", "expected 16")),
        ({"metadata": {"llama.rope.scaling.type": "longrope"}}, ("longrope",)),
    ],
)
def test_the_unknown_is_refused(tmp_path, llama, changes, words):
    architecture = changes.get("architecture", "llama")
    path = write(tmp_path / "m.gguf", llama, **changes) if architecture == "llama" else renamed(tmp_path, llama)
    with refused(ValueError, "m.gguf", *words):
        load_target(path)


def renamed(folder: pathlib.Path, model: Any) -> pathlib.Path:
    """The same file of an architecture that is not known; as long as llama."""
    data = write(folder / "m.gguf", model).read_bytes()
    (folder / "m.gguf").write_bytes(data.replace(b"llama", b"mamba"))
    return folder / "m.gguf"


@pytest.mark.parametrize("left", [0, 3, 20, 300, 3000, -1])
def test_a_truncated_file(tmp_path, llama, left):
    path = write(tmp_path / "m.gguf", llama)
    path.write_bytes(path.read_bytes()[:left])
    with refused(ValueError, "m.gguf cannot be read as a GGUF file"):
        describe(path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"general.alignment": 0}, "general.alignment is 0; expected a number of bytes"),
        ({"general.alignment": "32"}, "general.alignment is '32'"),
        ({"split.count": 3}, "one of 3 parts; expected the names NAME-00001-of-00003.gguf"),
        ({"split.no": 1}, "part 2 by its split.no, and part 1 by its name"),
        ({"llama.rope.freq_base_swa": "x"}, "llama.rope.freq_base_swa 'x'; expected a number"),
    ],
)
def test_headers_that_cannot_be_right(tmp_path, llama, metadata, words):
    with refused(ValueError, "m.gguf", words):
        load_target(write(tmp_path / "m.gguf", llama, metadata=metadata))


def test_names_that_are_there_twice(tmp_path, llama):
    path = write(tmp_path / "m.gguf", llama, metadata={"llama.xx": 1, "llama.xy": 2})
    path.write_bytes(path.read_bytes().replace(b"llama.xy", b"llama.xx"))
    with refused(ValueError, "metadata entry llama.xx is there twice"):
        describe(path)
    path = write(tmp_path / "n.gguf", llama)
    path.write_bytes(path.read_bytes().replace(b"blk.0.attn_k.", b"blk.0.attn_v."))
    with refused(ValueError, "tensor blk.0.attn_v.weight is there twice"):
        describe(path)


def test_a_published_pair_by_its_name(tmp_path, llama, run_cli, monkeypatch):
    """Without a format it is the file of its target."""
    path = write(tmp_path / "m.gguf", llama)
    monkeypatch.setattr("eagle_jax.loading.folders.target_folder", lambda pair: path)
    shown = run_cli("convert", "smollm2-135m-instruct", str(tmp_path / "folder"))
    assert (shown.exit_code, shown.stdout) == (0, f"Wrote {tmp_path / 'folder'}.\n")
    assert load_target(tmp_path / "folder").config == llama.config


def test_other_errors(tmp_path, llama):
    with refused(FileNotFoundError, "there is no model file", "absent.gguf"):
        resolve(tmp_path / "absent.gguf")
    (tmp_path / "folder.gguf").mkdir()
    with refused(ValueError, "folder.gguf is a folder; expected a GGUF file"):
        convert_gguf(tmp_path / "folder.gguf", tmp_path / "new")
    (tmp_path / "empty.gguf").touch()
    with refused(ValueError, "empty.gguf cannot be read as a GGUF file: it is empty; copy or download it again"):
        describe(tmp_path / "empty.gguf")
    path = write(tmp_path / "m.gguf", llama)
    path.write_bytes(path.read_bytes().replace(b"GGUF\x03", b"GGUF\x09", 1))
    with refused(ValueError, "version 9 is not known"):
        describe(path)
