"""Products of int4 weights by the kernel for GPUs: in Pallas's interpreter, and on a GPU where there is one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from for_cuda import lowered

from eagle_jax.kernels import int4_gpu
from eagle_jax.models import layout, quant
from eagle_jax.models.lm import LM
from eagle_jax.models.products import contract
from eagle_jax.models.quant import QuantArray, Rounding, dense, quantise
from eagle_jax.testing import TINY

SHAPES = {"groups of 32": ((128, 256), 32), "of 128": ((128, 1024), 128), "of 512": ((256, 1024), 512)}
CONFIG = dataclasses.replace(TINY, num_hidden_layers=1, hidden_size=128, intermediate_size=256, head_dim=32)
product = functools.partial(int4_gpu.product, interpret=jax.default_backend() != "gpu")


def rounded(shape: tuple[int, ...], group: int, key: jax.Array) -> QuantArray:
    """As it lies on a GPU: half a byte a level, scales in what is multiplied."""
    made = quantise(jax.random.normal(key, shape, jnp.bfloat16), Rounding(4, group), jnp.bfloat16)
    return dataclasses.replace(made, levels=made.levels.astype(jnp.int4), scales=made.scales.astype(jnp.bfloat16))


@pytest.mark.parametrize("count", [1, 5, 60, 70])
@pytest.mark.parametrize(("shape", "group"), SHAPES.values(), ids=SHAPES)
def test_it_is_the_product_with_the_dense_weight(shape, group, count, getkey):
    weight, rows = rounded(shape, group, getkey()), jax.random.normal(getkey(), (count, shape[1]), jnp.bfloat16)
    assert int4_gpu.takes(count, shape, shape[1] // group)
    found = product(rows, weight.levels, weight.scales)
    wanted = np.asarray(rows, np.float64) @ np.asarray(dense(weight), np.float64).T
    assert found.shape == wanted.shape and found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    other = dataclasses.replace(weight, scales=jnp.roll(weight.scales, 1, axis=1))  # the control: a neighbour's scales
    if other.scales.shape[1] > 1:
        assert np.abs(product(rows, other.levels, other.scales) - wanted).max() > 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(("shape", "group"), SHAPES.values(), ids=SHAPES)
def test_it_lowers_for_cuda(shape, group, getkey):
    weight, rows = rounded(shape, group, getkey()), jnp.zeros((60, shape[1]), jnp.bfloat16)
    assert "triton" in lowered(int4_gpu.product, rows, weight.levels, weight.scales)


def test_rows_around_it_do_not_move_a_row(getkey):
    weight, rows = rounded((128, 1024), 128, getkey()), jax.random.normal(getkey(), (60, 1024), jnp.bfloat16)
    together = product(rows, weight.levels, weight.scales)
    np.testing.assert_allclose(product(rows[7:8], weight.levels, weight.scales)[0], together[7], rtol=1e-6, atol=1e-5)


def test_what_does_not_come_apart_into_blocks_is_left():
    takes = int4_gpu.takes
    assert takes(60, (128256, 4096), 128) and takes(256, (4096, 14336), 112)
    assert not takes(257, (4096, 4096), 128)  # so many rows
    assert not takes(1, (4000, 4096), 128) and not takes(1, (4096, 4000), 125)
    assert not takes(1, (4096, 4096 + 64), 65)


def test_parts_make_enough_programs_and_keep_enough_steps():
    assert int4_gpu.cut(64, 32) == 4  # 4096 x 4096
    assert int4_gpu.cut(448, 32) == 1  # 28672 x 4096
    assert int4_gpu.cut(64, 112) == 4  # 4096 x 14336
    assert int4_gpu.cut(2, 8) == 2 and int4_gpu.cut(2, 7) == 1


@pytest.fixture
def asked(monkeypatch):
    """As on a GPU with the variable set, but interpreted. The list has what the kernel was given."""
    given: list[tuple[int, ...]] = []

    def seen(rows, levels, scales):
        given.append((rows.shape[0], *levels.shape))
        return product(rows, levels, scales)

    monkeypatch.setattr(int4_gpu, "is_asked", lambda: True)
    monkeypatch.setattr(int4_gpu, "product", seen)
    return given


def test_a_whole_model_goes_through_it(asked, monkeypatch):
    monkeypatch.setattr(quant, "level_dtype", lambda bits: np.dtype(jnp.int4 if bits == 4 else jnp.int8))
    monkeypatch.setattr(layout, "_turned", lambda linear: linear)  # as on a GPU
    floats = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), LM.init(CONFIG, jax.random.key(0)).params)
    params = layout.for_decoding(quant.quantise_params(floats, quant.scheme_of("int4")), CONFIG.head_dim)
    model, tokens = LM(params=params, config=CONFIG), jnp.arange(6)[None]
    logits = model(tokens)[1]
    through = {(6, 256, 128), (6, 128, 128), (6, 512, 128), (6, 128, 256)}  # qkv, o, gate and up, down
    assert set(asked) == through and len(asked) == 4
    monkeypatch.setattr(int4_gpu, "is_asked", lambda: False)
    np.testing.assert_allclose(logits, model(tokens)[1], atol=2e-2)
    assert len(asked) == 4


@pytest.mark.parametrize("shape", [(2, 64, 256), (4, 2, 32, 256)], ids=["gate and up", "qkv"])
def test_products_of_several_axes(shape, asked, getkey):
    weight, rows = rounded(shape, 32, getkey()), jax.random.normal(getkey(), (2, 3, 256), jnp.bfloat16)
    found = contract(rows, weight, weight.ndim - 1)
    wanted = jnp.einsum("bri,...i->br...", rows, dense(weight), preferred_element_type=jnp.float32)
    assert asked == [(6, int(np.prod(shape[:-1])), 256)] and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_only_what_it_multiplies_goes_there(asked, getkey):
    rows = jax.random.normal(getkey(), (3, 256), jnp.bfloat16)
    one = rounded((128, 256), 32, getkey())
    eight = quantise(dense(one), Rounding(8), jnp.bfloat16)
    floats = dataclasses.replace(one, dtype=np.dtype(jnp.float32))
    single = quantise(dense(one), Rounding(4, 256), jnp.bfloat16)
    for weight in (eight, floats, single, dataclasses.replace(one, levels=one.levels.astype(jnp.int8))):
        contract(rows, weight, 1)
    assert not asked
    contract(rows, one, 1)
    assert asked


def test_it_is_asked_for_by_name(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for value, expected in (("", False), ("xla", False), ("pallas_gpu", True)):
        monkeypatch.setenv(int4_gpu.VARIABLE, value)
        assert int4_gpu.is_asked() is expected
    monkeypatch.setenv(int4_gpu.VARIABLE, "triton")
    with pytest.raises(ValueError, match=r"EAGLE_JAX_INT4='triton' is no way to multiply int4; expected xla or pallas"):
        int4_gpu.is_asked()
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setenv(int4_gpu.VARIABLE, "pallas_gpu")
    assert not int4_gpu.is_asked()
