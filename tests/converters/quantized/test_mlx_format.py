"""MLX: codes with scales and biases, embeddings among them."""

import ml_dtypes
import numpy as np
import published
import pytest
from published import DOWN, EMBEDDING, Published

from eagle_jax.converters.files import Weights
from eagle_jax.ops.quantized import QuantType

STATED = {"group_size": 32, "bits": 4}


def published_as(bits=4, group=32, dtype=np.float16):
    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        codes = rng.integers(0, 2**bits, (out, size))
        scales, biases = (published.drawn_scales(rng, (out, size // group), dtype) for _ in range(2))
        dense = np.empty((out, size), np.float32)
        for o, i in np.ndindex(out, size):
            scale, bias = np.float32(scales[o, i // group]), np.float32(biases[o, i // group])
            dense[o, i] = np.float32(codes[o, i]) * scale + bias
        words = published.rows_of_words(codes, bits).view(np.uint32)
        return Published({"weight": words, "scales": scales, "biases": biases}, dense)

    return publish


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_those_of_the_rule(tmp_path, bits, dtype):
    stated = STATED | {"bits": bits, "mode": "affine"}
    folder = published.write(tmp_path, published_as(bits, dtype=dtype), stated, key="quantization")
    published.state(tmp_path, stated, key="quantization", quantization_config=stated)
    down = published.check(folder)[DOWN]
    assert down.quant_type == QuantType(bits, 32, has_minima=True)
    assert down.scales.dtype == down.minima.dtype == (np.float16 if dtype is np.float16 else np.float32)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_quantized_too(tmp_path, tied):
    floats = () if not tied else (published.OUTPUT,)
    folder = published.write(
        tmp_path, published_as(), STATED, key="quantization", floats=floats, tie_word_embeddings=tied
    )
    assert published.check(folder)[EMBEDDING].quant_type == QuantType(4, 32, has_minima=True)
    assert ("lm_head" in published.loaded(folder).params) != tied
    np.testing.assert_array_equal(Weights(tmp_path).take(f"{EMBEDDING}.weight"), folder.dense[EMBEDDING])
    assert published.load_target(tmp_path).dtype == np.float32  # on CPUs; next to nothing is floats


def test_modules_with_settings_of_their_own(tmp_path):
    def publish(rng, out, size):
        return (published_as(8, 16) if size == published.INTERMEDIATE else published_as())(rng, out, size)

    own = {DOWN: {"group_size": 16, "bits": 8}, "lm_head": False}
    folder = published.write(tmp_path, publish, STATED | own, key="quantization")
    assert published.check(folder)[DOWN].quant_type == QuantType(8, 16, has_minima=True)


@pytest.mark.parametrize(
    ("end", "change"),
    [
        ("weight", lambda x: x >> 4),
        ("scales", lambda x: x[::-1]),
        ("biases", lambda x: x[::-1]),
    ],
)
def test_what_the_numbers_depend_on(tmp_path, end, change):
    folder = published.write(tmp_path, published_as(), STATED, key="quantization")
    assert published.depends_on(folder, end, change)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (STATED | {"bits": 6}, "quantization: bits=6 of MLX is not read; expected 4, 8"),
        (STATED | {"mode": "mxfp4"}, "mode='mxfp4' of MLX is not read; expected 'affine'"),
        (STATED | {DOWN: {"bits": 3}}, "bits=3 of MLX for .*down_proj"),
        (STATED | {"group_size": 64}, "expected those of 4 bits in groups of 64, as the config states"),
    ],
)
def test_what_is_not_read_is_named(tmp_path, stated, words):
    with pytest.raises(ValueError, match=words):
        published.loaded(published.write(tmp_path, published_as(), stated, key="quantization"))
