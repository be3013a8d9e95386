"""Blocks of GGUF's quantized types: codes, scales and minima stand for exactly what the gguf library expands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle_jax.converters import describe, load_target
from eagle_jax.converters.gguf import blocks as gguf_blocks
from eagle_jax.converters.gguf.blocks import BLOCK_TYPES, read_blocks
from eagle_jax.converters.gguf.file import read_gguf
from eagle_jax.ops.quantized import QuantArray, dequantized
from tests.converters import folders
from tests.converters.gguf.gguf_files import permuted, write

gguf = pytest.importorskip("gguf")

OUTPUTS, INPUTS = 16, 1024
# Where float16 factors lie in a block; random bytes would make some of them NaN.
FACTORS = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "MXFP4": (),
    "NVFP4": (),
}


def random_blocks(type: str, outputs: int = OUTPUTS, inputs: int = INPUTS) -> np.ndarray:
    """Bytes `[out, bytes of a row]` whose every bit is random but for the factors, which are numbers."""
    generator = np.random.default_rng(list(BLOCK_TYPES).index(type))
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    blocks = generator.integers(0, 256, (outputs, inputs // numbers, size), dtype=np.uint8)
    for place in FACTORS[type]:
        factors = generator.normal(size=(*blocks.shape[:2], 1)).astype(np.float16)
        blocks[..., place : place + 2] = factors.view(np.uint8)
    if type == "MXFP4":
        blocks[..., 0] = generator.integers(64, 190, blocks.shape[:2])
    if type == "NVFP4":
        blocks[..., :4] &= 127  # scales without a sign
    return blocks.reshape(outputs, -1)


def expanded(data: np.ndarray, type: str) -> np.ndarray:
    return gguf.dequantize(data, gguf.GGMLQuantizationType[type])


def as_array(data: np.ndarray, type: str, inputs: int = INPUTS) -> QuantArray:
    parts, quant_type = read_blocks(data, inputs, type), BLOCK_TYPES[type].quant_type
    return QuantArray(
        codes=jnp.asarray(parts.codes.astype(quant_type.code_dtype)),
        scales=jnp.asarray(parts.scales),
        minima=None if parts.minima is None else jnp.asarray(parts.minima),
        bits=quant_type.bits,
        dtype=np.dtype("float32"),
        levels=quant_type.levels,
    )


@pytest.mark.parametrize("type", BLOCK_TYPES)
def test_every_number_is_that_of_the_library(type):
    """Compiled too, where a multiplication and an addition may become one operation."""
    data = random_blocks(type)
    weight = as_array(data, type)
    assert weight.quant_type == BLOCK_TYPES[type].quant_type
    for dequantize in (dequantized, jax.jit(dequantized)):
        np.testing.assert_array_equal(dequantize(weight), expanded(data, type))


@pytest.mark.parametrize("type", BLOCK_TYPES)
def test_codes_fit_their_bits_and_scales_are_those_of_the_file(type):
    parts, quant_type = read_blocks(random_blocks(type), INPUTS, type), BLOCK_TYPES[type].quant_type
    lowest = -(2 ** (quant_type.bits - 1)) if parts.codes.dtype == np.int8 else 0
    assert lowest <= parts.codes.min() and parts.codes.max() < lowest + 2**quant_type.bits
    assert (parts.codes.dtype == np.uint8) == (quant_type.has_minima or quant_type.levels != "int")
    is_half = type in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")
    for part in (parts.scales, parts.minima):
        assert part is None or (part.dtype == (np.float16 if is_half else np.float32) and len(part) == OUTPUTS)


@pytest.mark.parametrize("type", sorted(BLOCK_TYPES.keys() - {"Q8_0"}))
def test_another_order_of_bits_is_seen(type, monkeypatch):
    """Codes whose neighbours share a byte, as in other formats, are not these."""

    def neighbours(octets, bits, run):
        del run
        return fields(octets, bits, 1)

    fields = gguf_blocks._fields
    monkeypatch.setattr(gguf_blocks, "_fields", neighbours)
    data = random_blocks(type)
    assert not np.array_equal(dequantized(as_array(data, type)), expanded(data, type))


WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "vocab_size": 300}


@pytest.mark.parametrize("type", ["Q4_K", "Q6_K", "IQ4_XS", "Q5_1", "MXFP4"])
def test_whole_models_keep_the_numbers(tmp_path, monkeypatch, type):
    """Matrices, rows of llama's q and k moved, and the embedding, which is the output matrix here."""
    monkeypatch.setattr(gguf, "quantize", lambda value, kind: random_blocks(kind.name, *value.shape))
    model = folders.target(**WIDE, tie_word_embeddings=True)
    path = write(tmp_path / "m.gguf", model, type=type)
    tensors = read_gguf(path).tensors
    params = load_target(path, dtype="float32").params
    layer, heads = params["layers_0"], model.config.num_attention_heads
    for own, weight in {
        "token_embd": params["embed_tokens"]["embedding"],
        "blk.0.attn_q": layer["self_attn"]["q_proj"]["weight"],
        "blk.0.attn_v": layer["self_attn"]["v_proj"]["weight"],
        "blk.0.ffn_down": layer["mlp"]["down_proj"]["weight"],
    }.items():
        assert isinstance(weight, QuantArray)
        values = np.asarray(dequantized(weight))
        stored = expanded(tensors[f"{own}.weight"].data, type)
        np.testing.assert_array_equal(permuted(values, heads) if own == "blk.0.attn_q" else values, stored)
    assert set(describe(path).kinds.values()) == {"float32", f"{type}, kept as {BLOCK_TYPES[type].quant_type}"}


def test_what_is_not_kept_is_expanded(tmp_path):
    """A type of two bits with no group that `QuantArray` has."""
    model = folders.target(**WIDE)
    path = write(tmp_path / "m.gguf", model, type="TQ2_0")
    stored = expanded(read_gguf(path).tensors["blk.0.ffn_up.weight"].data, "TQ2_0")
    for dtype, expected in ((None, jnp.bfloat16), ("float32", jnp.float32)):
        weight = load_target(path, dtype=dtype).params["layers_0"]["mlp"]["up_proj"]["weight"]
        assert weight.dtype == expected
        np.testing.assert_array_equal(weight, jnp.asarray(stored).astype(expected))
    assert "TQ2_0, expanded to floats" in describe(path).kinds.values()


def test_kinds_of_two_types_say_how_many(tmp_path, monkeypatch):
    """As in files of "Q4_K_M", where half of the layers have some matrices in more bits."""
    monkeypatch.setattr(gguf, "quantize", lambda value, kind: random_blocks(kind.name, *value.shape))
    model = folders.target(**WIDE | {"num_hidden_layers": 2})
    path = write(tmp_path / "m.gguf", model, type=lambda own: "Q6_K" if own == "blk.1.attn_v.weight" else "Q4_K")
    [text] = [text for names, text in describe(path).kinds.items() if "v_proj" in names.split(", ")]
    assert sorted(part.partition(",")[0] for part in text.split("; ")) == ["Q4_K", "Q6_K"]
    assert text.count("(1 of 2)") == 2
    weights = load_target(path).params
    bits = [weights[f"layers_{i}"]["self_attn"]["v_proj"]["weight"].bits for i in (0, 1)]
    assert bits == [4, 8]
