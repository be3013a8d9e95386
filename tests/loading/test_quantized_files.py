"""Files of quantized weights: their numbers are kept whatever the dtype, or become floats where that is asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eagle_jax
from eagle_jax.api import with_weights
from eagle_jax.loading.model import Model
from eagle_jax.models.layout import for_files
from eagle_jax.models.quant import dense_params, flat
from eagle_jax.ops.quantized import QuantArray
from tests.converters import folders
from tests.converters.gguf.gguf_files import write

pytest.importorskip("gguf")

WIDE = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 300, "tie_word_embeddings": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file like SmolLM2's: matrices of Q4_1, and a tied embedding of Q8_0."""
    folder = tmp_path_factory.mktemp("gguf")
    return write(
        folder / "m.gguf", folders.target(**WIDE), type=lambda own: "Q8_0" if own.startswith("token") else "Q4_1"
    )


def stored(model: Model) -> dict:
    return dict(flat(for_files(model.target.params)))


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_dtype_is_that_of_the_floats_and_numbers_stay(path, dtype):
    model = eagle_jax.load(path, dtype=dtype)
    assert model.is_quantized and model.dtype == dtype
    weights = stored(model)
    assert weights["norm/scale"].dtype == dtype
    table, up = weights["embed_tokens/embedding"], weights["layers_0/mlp/up_proj/weight"]
    assert (table.bits, up.bits, up.scales.dtype, up.minima.dtype) == (8, 4, jnp.float16, jnp.float16)
    for name, weight in stored(eagle_jax.load(path, dtype="float32")).items():
        if isinstance(weight, QuantArray):
            for one, other in zip(jax.tree.leaves(weight), jax.tree.leaves(weights[name]), strict=True):
                np.testing.assert_array_equal(one, other)


def test_none_makes_floats(path):
    kept, floats = (eagle_jax.load(path, dtype="float32", quantize=quantize) for quantize in (None, "none"))
    assert not floats.is_quantized and floats.size == kept.size and floats.weights_size > 3 * kept.weights_size
    expanded = dict(flat(dense_params(for_files(kept.target.params))))
    for name, weight in stored(floats).items():
        np.testing.assert_array_equal(weight, expanded[name])


def test_the_same_width_changes_nothing_and_another_is_refused(path):
    kept, same = (eagle_jax.load(path, quantize=quantize) for quantize in (None, "int4"))
    jax.tree.map(np.testing.assert_array_equal, kept.target, same.target)
    with pytest.raises(ValueError, match='4 bits already, and 8 were asked for.*"requantize:"'):
        eagle_jax.load(path, quantize="int8")
    again = stored(eagle_jax.load(path, quantize="requantize:int8"))
    assert again["layers_0/mlp/up_proj/weight"].bits == 8
    assert again["embed_tokens/embedding"].scales.dtype == jnp.float16, "the table is the file's"


def test_new_weights_are_not_rounded_to_what_a_file_has(path):
    model = eagle_jax.load(path, dtype="float32")
    new = eagle_jax.weights_of(model).target
    with pytest.raises(ValueError, match=r"quantized by its file \(int.*load the model with quantize=\"none\""):
        with_weights(model, target=new)
    floats = eagle_jax.load(path, dtype="float32", quantize="none")
    taken = with_weights(floats, target=new)
    for name, weight in stored(floats).items():
        np.testing.assert_array_equal(stored(taken)[name], weight)
