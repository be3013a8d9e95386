"""What the libraries that write these formats make of them, bit for bit; each test needs its library."""

import ml_dtypes
import numpy as np
import published
import pytest
import test_awq_format
import test_fp4_formats
import test_fp8_format
import test_gptq_format
from published import DOWN, Published

from eagle_jax.converters.quantized import mxfp4, unpacking
from eagle_jax.ops.quantized import dense

BITS = {np.dtype(ml_dtypes.bfloat16): np.int16, np.dtype(ml_dtypes.float8_e4m3fn): np.uint8}


def library(name: str):
    """A library that runs on PyTorch, or a skip."""
    pytest.importorskip("torch")
    return pytest.importorskip(name, exc_type=ImportError)


def as_torch(array: np.ndarray):
    import torch

    array = np.ascontiguousarray(array)
    if array.dtype not in BITS:
        return torch.from_numpy(array)
    dtype = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}[array.dtype.name]
    return torch.from_numpy(array.view(BITS[array.dtype])).view(dtype)


def as_numpy(tensor) -> np.ndarray:
    import torch

    tensor = tensor.detach().contiguous()
    for dtype, ours in ((torch.bfloat16, ml_dtypes.bfloat16), (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn)):
        if tensor.dtype == dtype:
            return tensor.view(torch.int16 if dtype.itemsize == 2 else torch.uint8).numpy().view(ours)
    return tensor.numpy()


GROUP = {"strategy": "group", "group_size": 32}
FLOAT = {"num_bits": 8, "type": "float"}


@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("format", "weights"),
    [
        ("pack-quantized", {"num_bits": 4} | GROUP),
        ("pack-quantized", {"num_bits": 8, "strategy": "channel"}),
        ("pack-quantized", {"num_bits": 4, "symmetric": False} | GROUP),
        ("pack-quantized", {"num_bits": 8, "symmetric": False} | GROUP),
        ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
        ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
        ("float-quantized", FLOAT | {"strategy": "channel"}),
        ("float-quantized", FLOAT | {"strategy": "tensor"}),
        ("float-quantized", FLOAT | {"strategy": "block", "block_structure": [64, 64]}),
        ("mxfp8-quantized", FLOAT | GROUP),
        ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
        ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float"} | GROUP),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(str(x) for x in value.values()),
)
def test_compressed_tensors(tmp_path, format, weights, dtype):
    """Packed and unpacked by the library; it computes in the dtype of the scales, and rounds there once."""
    library("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    compressor = BaseCompressor.get_value_from_registry(format)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))

    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        state = {"weight": as_torch(rng.standard_normal((out, size)).astype(dtype))}
        columns = size // weights["group_size"] if "group_size" in weights else 1
        rows = out
        if weights["strategy"] == "tensor":
            rows = 1
        if weights["strategy"] == "block":
            rows, columns = -(-out // 64), -(-size // 64)
        scales = rng.uniform(0.01, 0.3, (rows, columns)).astype(dtype)
        if format.startswith("mx"):
            scales = (2.0 ** rng.integers(-6, 0, scales.shape)).astype(dtype)
        if format.startswith("nv"):
            scales = rng.uniform(1, 400, scales.shape).astype(ml_dtypes.float8_e4m3fn).astype(dtype)
            state["weight_global_scale"] = as_torch(rng.uniform(500, 2000, 1).astype(np.float32))
        state["weight_scale"] = as_torch(scales)
        if not weights.get("symmetric", True):
            middle = 2 ** (weights["num_bits"] - 1)
            state["weight_zero_point"] = as_torch(rng.integers(-middle, middle, scales.shape).astype(np.int8))
        stored = compressor.compress(state, scheme)
        back = compressor.decompress(dict(stored), scheme)["weight"]
        return Published({name: as_numpy(value) for name, value in stored.items()}, as_numpy(back))

    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    stated = {"quant_method": "compressed-tensors", "format": format, "config_groups": groups}
    folder = published.write(tmp_path, publish, stated)
    compared = 0
    for module, weight in published.weights_of(published.loaded(folder)):
        if module in folder.dense:
            theirs = folder.dense[module]
            np.testing.assert_array_equal(np.asarray(dense(weight)).astype(theirs.dtype), theirs, err_msg=module)
            compared += 1
    assert compared == 7


@pytest.mark.parity
@pytest.mark.parametrize(
    ("publish", "stated"),
    [
        (test_gptq_format.published_as(), test_gptq_format.STATED),
        (test_gptq_format.published_as(8, shuffled=True), test_gptq_format.STATED | {"bits": 8, "desc_act": True}),
        (test_gptq_format.published_as(sym=False, shuffled=True), test_gptq_format.STATED | {"sym": False}),
        (
            test_gptq_format.published_as(8, False, 2),
            test_gptq_format.STATED | {"bits": 8, "sym": False, "checkpoint_format": "gptq_v2"},
        ),
        (test_fp8_format.published_as(), test_fp8_format.STATED),
        (test_fp8_format.published_as((0, 0), "weight_scale", axes=0), test_fp8_format.MODELOPT),
        (test_fp4_formats.nvfp4("modelopt"), test_fp4_formats.MODELOPT | {"format": "nvfp4"}),
    ],
    ids=["GPTQ", "GPTQ 8 desc_act", "GPTQ asymmetric", "GPTQ v2", "FP8 blocks", "FP8", "NVFP4 of ModelOpt"],
)
def test_gptqmodel(tmp_path, publish, stated):
    """Its tool that turns folders into floats, in float32."""
    library("gptqmodel")
    import torch
    from gptqmodel.utils.model_dequant import dequantize_model
    from safetensors.torch import load_file

    folder = published.write(tmp_path / "quantized", publish, stated)
    dequantize_model(folder.path, tmp_path / "floats", target_dtype=torch.float32)
    theirs = load_file(tmp_path / "floats" / "model.safetensors")
    ours = {module: np.asarray(dense(weight)) for module, weight in published.weights_of(published.loaded(folder))}
    for module in folder.dense:
        np.testing.assert_array_equal(ours[module], theirs[f"{module}.weight"].numpy(), err_msg=module)


@pytest.mark.parity
def test_autoawq(tmp_path):
    """Its own dequantization of the tensors, in float32."""
    packing = library("awq.utils.packing_utils")
    folder = published.write(tmp_path, test_awq_format.published_as(), test_awq_format.STATED)
    tensors = published.tensors_of(folder)
    words, zeros, scales = (as_torch(tensors[f"{DOWN}.{end}"]) for end in ("qweight", "qzeros", "scales"))
    theirs = packing.dequantize_gemm(words, zeros, scales.float(), 4, test_awq_format.GROUP).T
    np.testing.assert_array_equal(np.asarray(published.check(folder)[DOWN].codes).shape, theirs.shape)
    np.testing.assert_array_equal(folder.dense[DOWN], theirs.numpy())


@pytest.mark.parity
def test_transformers_fp8(tmp_path):
    """Blocks that divide the weight; it refuses others."""
    library("transformers")
    import torch
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    folder = published.write(
        tmp_path, test_fp8_format.published_as((32, 32)), test_fp8_format.STATED | {"weight_block_size": [32, 32]}
    )
    tensors = published.tensors_of(folder)
    weight, scale = (as_torch(tensors[f"{DOWN}.{end}"]) for end in ("weight", "weight_scale_inv"))
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)
    published.check(folder)
    np.testing.assert_array_equal(folder.dense[DOWN], theirs.numpy())


@pytest.mark.parity
def test_transformers_experts_of_gpt_oss():
    library("transformers")
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (2, 6, 2, 16)).astype(np.uint8)
    scales = rng.integers(110, 130, (2, 6, 2)).astype(np.uint8)
    theirs = convert_moe_packed_tensors(as_torch(blocks), as_torch(scales), dtype=torch.float32)
    ours = unpacking.dense(mxfp4.unpack(blocks, scales), "e2m1")
    np.testing.assert_array_equal(ours, theirs.numpy().swapaxes(1, 2))


@pytest.mark.parity
@pytest.mark.parametrize("nested", [False, True], ids=["floats", "double"])
def test_bitsandbytes_nf4(tmp_path, nested):
    functional = library("bitsandbytes").functional
    import torch

    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        weight = as_torch(rng.standard_normal((out, size)).astype(np.float32))
        packed, state = functional.quantize_nf4(weight, compress_statistics=nested)
        tensors = {f"weight.{name}": as_numpy(value) for name, value in state.as_dict(packed=True).items()}
        back = functional.dequantize_4bit(packed, state)
        assert back.dtype == torch.float32
        return Published({"weight": as_numpy(packed)} | tensors, as_numpy(back))

    stated = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    # Rows of whole blocks: its kernel for CPUs starts a block in every row, while its quantizer runs on over rows.
    published.check(published.write(tmp_path, publish, stated, intermediate_size=128))


@pytest.mark.parity
def test_bitsandbytes_int8(tmp_path):
    """It multiplies by 1 / 127 as a float: two roundings more than ours at most."""
    functional = library("bitsandbytes").functional

    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        weight = as_torch(rng.standard_normal((out, size)).astype(np.float16))
        codes, scales, _ = functional.int8_vectorwise_quant(weight)
        back = functional.int8_vectorwise_dequant(codes, scales)
        return Published({"weight": as_numpy(codes), "SCB": as_numpy(scales)}, as_numpy(back))

    folder = published.write(tmp_path, publish, {"quant_method": "bitsandbytes", "load_in_8bit": True})
    for module, weight in published.weights_of(published.loaded(folder)):
        if module in folder.dense:
            np.testing.assert_array_max_ulp(np.asarray(dense(weight)), folder.dense[module], maxulp=3)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_mlx(tmp_path, bits, dtype):
    """Its own dequantization, of scales and biases of the stored dtype in float32."""
    mx = pytest.importorskip("mlx.core", exc_type=ImportError)

    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        weight = mx.array(rng.standard_normal((out, size)).astype(np.float32)).astype(getattr(mx, dtype))
        parts = mx.quantize(weight, group_size=32, bits=bits)
        back = mx.dequantize(parts[0], *(part.astype(mx.float32) for part in parts[1:]), group_size=32, bits=bits)
        stored = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        scales, biases = (np.array(part.astype(mx.float32)).astype(stored) for part in parts[1:])
        return Published({"weight": np.array(parts[0]), "scales": scales, "biases": biases}, np.array(back))

    folder = published.write(tmp_path, publish, {"group_size": 32, "bits": bits}, key="quantization", floats=())
    for module, weight in published.weights_of(published.loaded(folder)):
        if module in folder.dense:
            np.testing.assert_array_equal(np.asarray(dense(weight)), folder.dense[module], err_msg=module)
