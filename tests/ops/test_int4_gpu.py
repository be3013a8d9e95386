"""Products of int4 weights by the kernel for GPUs: in Pallas's interpreter, and on a GPU where there is one."""

import dataclasses
import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from for_cuda import lowered
from jax.sharding import Mesh

from eagle_jax import ops
from eagle_jax.models import layout, quant
from eagle_jax.models.lm import LM
from eagle_jax.ops import matmul, packing, quantized
from eagle_jax.ops.gpu import backend
from eagle_jax.ops.gpu import int4 as int4_gpu
from eagle_jax.ops.quantized import QuantArray, QuantType, dense, quantize
from eagle_jax.sharding import AXES, Sharding
from eagle_jax.sharding.tracing import traced_over
from eagle_jax.testing import TINY

SHAPES = {
    "groups of 32": ((128, 256), 32),
    "of 16, cut nowhere": ((128, 896), 16),
    "of 128": ((128, 1024), 128),
    "of 384": ((256, 768), 384),
}
CONFIG = dataclasses.replace(TINY, num_hidden_layers=1, hidden_size=128, intermediate_size=256, head_dim=32)
product = functools.partial(int4_gpu.product, interpret=jax.default_backend() != "gpu")


def rounded(shape: tuple[int, ...], group: int, key: jax.Array, scales: Any = jnp.bfloat16) -> QuantArray:
    """As it lies on a GPU: half a byte a code, scales in what is multiplied."""
    made = quantize(jax.random.normal(key, shape, jnp.bfloat16), QuantType(4, group), jnp.bfloat16)
    return dataclasses.replace(made, codes=made.codes.astype(jnp.int4), scales=made.scales.astype(scales))


@pytest.mark.matrix
@pytest.mark.parametrize("count", [1, 17, 60, 70])
@pytest.mark.parametrize(("shape", "group"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("scales", [jnp.bfloat16, jnp.float32], ids=["bfloat16 scales", "float32 scales"])
def test_it_is_the_product_with_the_dense_weight(shape, group, count, scales, getkey):
    weight, rows = rounded(shape, group, getkey(), scales), jax.random.normal(getkey(), (count, shape[1]), jnp.bfloat16)
    assert int4_gpu.refusal(*shape, shape[1] // group) is None
    found = product(rows, weight.codes, weight.scales)
    wanted = np.asarray(rows, np.float64) @ np.asarray(dense(weight), np.float64).T
    assert found.shape == wanted.shape and found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    other = product(rows, weight.codes, jnp.roll(weight.scales, 1, axis=1))  # the control: a neighbour's scales
    assert np.abs(other - wanted).max() > 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(("shape", "group"), SHAPES.values(), ids=SHAPES)
def test_it_lowers_for_cuda(shape, group, getkey):
    weight, rows = rounded(shape, group, getkey()), jnp.zeros((60, shape[1]), jnp.bfloat16)
    assert "triton" in lowered(int4_gpu.product, rows, weight.codes, weight.scales)


def test_rows_around_it_do_not_move_a_row(getkey):
    weight, rows = rounded((128, 1024), 128, getkey()), jax.random.normal(getkey(), (128, 1024), jnp.bfloat16)
    alone = product(rows[:1], weight.codes, weight.scales)[0]
    for count in (17, 60, 70, 128):
        together = product(rows[:count], weight.codes, weight.scales)[0]
        if jax.default_backend() == "gpu":  # tiles of other sizes may add up in another order there
            np.testing.assert_allclose(alone, together, rtol=1e-6, atol=1e-5)
        else:
            np.testing.assert_array_equal(alone, together)


@pytest.mark.parametrize(
    ("outputs", "inputs", "groups", "said"),
    [
        (128256, 4096, 128, None),
        (4096, 14336, 112, None),
        (4000, 4096, 128, "a weight of 4000 x 4096 cannot be divided into blocks of 128 x 128"),
        (4096, 4160, 65, "a weight of 4096 x 4160 cannot"),
        (128, 384, 4, "groups of 96 cannot be divided into blocks of 128"),
        (128, 256, 256, "groups of 1 cannot"),
    ],
)
def test_what_does_not_come_apart_into_blocks_is_refused(outputs, inputs, groups, said):
    found = int4_gpu.refusal(outputs, inputs, groups)
    assert found is None if said is None else found.startswith(said)


def test_parts_make_enough_programs_and_keep_enough_steps():
    assert int4_gpu.cut(64, 32) == 4  # 4096 x 4096
    assert int4_gpu.cut(448, 32) == 1  # 28672 x 4096
    assert int4_gpu.cut(64, 112) == 4  # 4096 x 14336
    assert int4_gpu.cut(2, 8) == 2 and int4_gpu.cut(2, 7) == 1


@pytest.fixture
def asked(monkeypatch):
    """As on a GPU with the variable set, but interpreted. The list has what the kernel was given."""
    given: list[tuple[int, ...]] = []

    def seen(rows, codes, scales):
        given.append((rows.shape[0], *codes.shape))
        return product(rows, codes, scales)

    monkeypatch.setenv(ops.VARIABLE, "xla,linear:gpu")
    monkeypatch.setattr(backend, "_refusal", lambda: None)
    monkeypatch.setattr(int4_gpu, "product", seen)
    return given


def test_a_whole_model_goes_through_it(asked, monkeypatch):
    stored = property(lambda self: np.dtype(jnp.int4 if self.bits == 4 else jnp.int8))
    monkeypatch.setattr(quantized.QuantType, "code_dtype", stored)
    monkeypatch.setattr(packing, "_for_xla", as_on_gpus)
    floats = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), LM.init(CONFIG, jax.random.key(0)).params)
    params = layout.for_decoding(quant.quantize_params(floats, quant.scheme_of("int4")), CONFIG.head_dim, sharded=True)
    model, tokens = LM(params=params, config=CONFIG), jnp.arange(6)[None]
    logits = model(tokens)[1]
    through = {(6, 256, 128), (6, 128, 128), (6, 512, 128), (6, 128, 256)}  # qkv, o, gate and up, down
    assert set(asked) == through and len(asked) == 4
    monkeypatch.setenv(ops.VARIABLE, "xla")
    np.testing.assert_allclose(logits, model(tokens)[1], atol=2e-2)
    assert len(asked) == 4


def as_on_gpus(weight: Any) -> Any:
    """As `pack` leaves matrices there."""
    if isinstance(weight, QuantArray) and weight.scales.shape[-1] > 1:
        return dataclasses.replace(weight, scales=weight.scales.astype(weight.dtype))
    return weight


@pytest.mark.parametrize("shape", [(2, 64, 256), (4, 2, 32, 256)], ids=["gate and up", "qkv"])
def test_products_of_several_axes(shape, asked, getkey):
    weight, rows = rounded(shape, 32, getkey()), jax.random.normal(getkey(), (2, 3, 256), jnp.bfloat16)
    found = matmul(rows, weight)
    wanted = jnp.einsum("bri,...i->br...", rows, dense(weight), preferred_element_type=jnp.float32)
    assert asked == [(6, int(np.prod(shape[:-1])), 256)] and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_only_what_it_multiplies_goes_there(asked, monkeypatch, getkey, caplog):
    rows, one = jax.random.normal(getkey(), (3, 256), jnp.bfloat16), rounded((128, 256), 32, getkey())
    monkeypatch.setattr(ops.dispatch, "_logged", set())
    for _ in range(2):
        matmul(rows, quantize(dense(one), QuantType(8), jnp.bfloat16))
        matmul(rows, ops.Transposed(jax.tree.map(jnp.transpose, one)))
        matmul(jnp.zeros((int4_gpu.MAX_ROWS + 1, 256), jnp.bfloat16), one)
        matmul(rows, rounded((64, 256), 32, getkey()))
        matmul(rows, dataclasses.replace(one, dtype=np.dtype(jnp.float32)))
        with traced_over(Sharding(Mesh(np.array(jax.devices()[:1]).reshape(1, 1), AXES))):
            matmul(rows, one)
    reasons = [
        "the weight is not quantized to 4 bits",
        f"more than {int4_gpu.MAX_ROWS} rows",
        "a weight of 64 x 256 cannot",
        "weights are multiplied in float32",
        "the program runs on several",
    ]
    assert not asked and len(caplog.messages) == len(reasons)
    for message, reason in zip(caplog.messages, reasons, strict=True):
        assert message.startswith(f"gpu does not compute linear: {reason}")
    matmul(rows, one)
    assert asked == [(3, 128, 256)]


def test_gradients_are_those_of_the_dense_weight(asked, getkey):
    rows, weight = jax.random.normal(getkey(), (3, 256), jnp.bfloat16), rounded((128, 256), 32, getkey())
    towards = jax.random.normal(getkey(), (3, 128))
    matmul(rows, weight)
    assert asked  # without a gradient it is the kernel's
    found, back = jax.vjp(lambda rows: matmul(rows, weight), rows)
    wanted, wanted_back = jax.vjp(lambda rows: matmul(rows, dense(weight)), rows)
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    np.testing.assert_array_equal(*(np.asarray(one(towards)[0], np.float32) for one in (back, wanted_back)))


def test_it_needs_a_gpu_and_triton(monkeypatch):
    assert (backend._refusal() is None) == (jax.default_backend() == "gpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    monkeypatch.delattr("jax.experimental.pallas.triton", raising=False)
    assert "has no Triton lowering" in backend._refusal()
