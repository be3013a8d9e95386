"""A folder of gpt-oss as published, with experts of MXFP4, against the same numbers in floats."""

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle_jax.converters import config_from_hf, llama, load_target, names, save_target
from eagle_jax.converters.describe import describe
from eagle_jax.converters.families import tensors as family_tensors
from eagle_jax.converters.quantizing import quantize
from eagle_jax.ops.quantized import QuantArray, dense

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
ENTRIES: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "sliding_window": 4,
    "max_position_embeddings": 64,
}
STATED = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def folders(path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The same model with experts of MXFP4, `[.., out, in]`, and of floats, `[.., in, out]`."""
    rng, config = np.random.default_rng(0), config_from_hf(ENTRIES)
    apart = names.expected(llama.rules(config), llama.shapes(config)).items()
    joined = family_tensors.join(config, ((name, np.zeros(shape, np.float32)) for name, shape in apart))
    floats = {name: (rng.standard_normal(value.shape) / 4).astype(np.float32) for name, value in joined}
    packed = dict(floats)
    for name in [name for name in floats if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = floats[name].shape
        codes = rng.integers(0, 16, (experts, outputs, inputs)).astype(np.uint8)
        exponents = rng.integers(122, 126, (experts, outputs, inputs // 32)).astype(np.uint8)
        packed[f"{name}_blocks"] = (codes[..., ::2] | codes[..., 1::2] << 4).reshape(experts, outputs, -1, 16)
        packed[f"{name}_scales"] = exponents
        scales = np.float32(2.0) ** (exponents.astype(np.float32) - 127)
        weight = VALUES[codes] * scales.repeat(32, axis=2)
        floats[name] = np.ascontiguousarray(weight.swapaxes(1, 2))
        del packed[name]
    both = path / "mxfp4", path / "floats"
    for folder, tensors, more in zip(both, (packed, floats), ({"quantization_config": STATED}, {}), strict=True):
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(ENTRIES | more))
    return both


def test_mxfp4_experts_keep_their_numbers(tmp_path: pathlib.Path):
    quantized, floats = (load_target(folder) for folder in folders(tmp_path))
    for layer in ("layers_0", "layers_1"):
        for part in ("gate", "up", "down"):
            one, other = (lm.params[layer]["mlp"]["experts"][part] for lm in (quantized, floats))
            assert isinstance(one, QuantArray) and one.levels == "e2m1" and not isinstance(other, QuantArray)
            np.testing.assert_array_equal(dense(one), other)
    tokens = jnp.arange(12, dtype=jnp.int32)[None] % 32
    one, other = (np.asarray(jax.jit(lambda lm, tokens: lm(tokens)[1])(lm, tokens)) for lm in (quantized, floats))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


def test_gate_and_up_take_turns(tmp_path: pathlib.Path):
    """Negative control: the first half of the outputs are not the gate's."""
    _, folder = folders(tmp_path)
    lm = load_target(folder)
    from safetensors.numpy import load_file

    stored = load_file(folder / "model.safetensors")["model.layers.1.mlp.experts.gate_up_proj"]
    experts = lm.params["layers_1"]["mlp"]["experts"]
    np.testing.assert_array_equal(experts["gate"], stored[..., ::2].swapaxes(1, 2))
    np.testing.assert_array_equal(experts["up"], stored[..., 1::2].swapaxes(1, 2))
    assert not np.array_equal(experts["gate"], stored[..., :32].swapaxes(1, 2))


def test_what_is_in_the_folder_is_told_and_rounded_files_are_not_written(tmp_path: pathlib.Path):
    quantized, floats = folders(tmp_path)
    described = describe(quantized)
    assert (described.kind, described.format, described.problem) == ("target", "gpt_oss", None)
    with pytest.raises(ValueError, match="several matrices in one tensor, and quantized ones are not written so"):
        save_target(load_target(quantized), tmp_path / "new")
    with pytest.raises(ValueError, match="several matrices in one tensor, .* and quantized ones are not written so"):
        quantize(floats, tmp_path / "new", "int8")
    assert not (tmp_path / "new").exists()


def test_a_tensor_of_another_size_is_named(tmp_path: pathlib.Path):
    folder, _ = folders(tmp_path)
    (folder / "config.json").write_text(json.dumps(ENTRIES | {"intermediate_size": 64, "quantization_config": STATED}))
    with pytest.raises(ValueError, match=r"experts\.down_proj .* has shape \[3, 64, 32\]; expected \[3, 64, 64\]"):
        load_target(folder)
