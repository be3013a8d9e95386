"""bitsandbytes: NF4, its scales as floats or quantized too, and LLM.int8()."""

import json

import numpy as np
import published
import pytest
from published import DOWN, Published

from eagle_jax.ops.quantized import LEVELS, QuantType

NF4 = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "llm_int8_skip_modules": None,
}
INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
BLOCK = 64


def nf4(nested=False):
    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        codes = rng.integers(0, 16, out * size)
        octets = np.asarray([codes[k] << 4 | codes[k + 1] for k in range(0, out * size, 2)], np.uint8)[:, None]
        count = out * size // BLOCK
        state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": [out, size]}
        tensors = {"weight": octets, "weight.quant_map": np.asarray(LEVELS["nf4"], np.float32)}
        if nested:
            state |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": 0.0421}
            table = np.sort(rng.standard_normal(256)).astype(np.float32)
            whole, inner = rng.uniform(0.1, 1, -(-count // 16)).astype(np.float32), rng.integers(0, 256, count)
            scales = [table[inner[k]] * whole[k // 16] + np.float32(0.0421) for k in range(count)]
            tensors |= {"weight.absmax": inner.astype(np.uint8), "weight.nested_absmax": whole}
            tensors |= {"weight.nested_quant_map": table}
        else:
            scales = rng.uniform(0.1, 1, count).astype(np.float32)
            tensors["weight.absmax"] = scales
        octets_of_state = np.frombuffer(json.dumps(state).encode(), np.uint8)
        tensors["weight.quant_state.bitsandbytes__nf4"] = octets_of_state
        dense = [np.float32(LEVELS["nf4"][code]) * scales[k // BLOCK] for k, code in enumerate(codes)]
        return Published(tensors, np.asarray(dense, np.float32).reshape(out, size))

    return publish


def int8(rng: np.random.Generator, out: int, size: int) -> Published:
    codes, scales = rng.integers(-127, 128, (out, size)), rng.uniform(0.1, 1, out).astype(np.float32)
    dense = np.empty((out, size), np.float32)
    for o, i in np.ndindex(out, size):
        dense[o, i] = np.float32(codes[o, i]) * (scales[o] / np.float32(127))
    layout = np.zeros((), np.uint8)
    return Published({"weight": codes.astype(np.int8), "SCB": scales, "weight_format": layout}, dense)


@pytest.mark.parametrize("nested", [False, True], ids=["floats", "double"])
def test_nf4(tmp_path, nested):
    weights = published.check(published.write(tmp_path, nf4(nested), NF4))
    assert weights[DOWN].quant_type == QuantType(4, 32, "nf4")  # blocks of 64 run on over rows of 96
    assert weights["model.layers.0.mlp.up_proj"].quant_type == QuantType(4, None, "nf4")


def test_int8(tmp_path):
    assert published.check(published.write(tmp_path, int8, INT8))[DOWN].quant_type == QuantType(8)


@pytest.mark.parametrize(
    ("end", "change"),
    [("weight", lambda x: x >> 4 | x << 4), ("weight.absmax", lambda x: x[::-1])],
)
def test_what_the_numbers_depend_on(tmp_path, end, change):
    folder = published.write(tmp_path, nf4(), NF4)
    assert published.depends_on(folder, end, change)


def test_other_tables_are_refused(tmp_path):
    folder = published.write(tmp_path, nf4(), NF4)
    published.changed(folder, lambda tensors: tensors[f"{DOWN}.weight.quant_map"].fill(0))
    with pytest.raises(ValueError, match="quant_map .* another table than NF4's"):
        published.loaded(folder)
    published.state(tmp_path, NF4 | {"bnb_4bit_quant_type": "fp4"})
    with pytest.raises(ValueError, match="bnb_4bit_quant_type='fp4' of bitsandbytes is not read"):
        published.loaded(folder)


def test_another_layout_of_int8_is_refused(tmp_path):
    folder = published.write(tmp_path, int8, INT8)
    published.changed(folder, lambda tensors: tensors[f"{DOWN}.weight_format"].fill(1))
    with pytest.raises(ValueError, match="weight_format .* another layout than rows"):
        published.loaded(folder)
