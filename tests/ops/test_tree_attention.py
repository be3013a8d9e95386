"""One contract for every backend of tree attention: each inherits the cases, held against slow, obvious NumPy."""

import dataclasses
import functools
import logging
import math
import re
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import CASES, Asked, expected, made
from for_cuda import lowered

from eagle_jax.ops import VARIABLE, AttentionCall, attention_parts, dispatch, tree_attention
from eagle_jax.ops import attention_reference as xla
from eagle_jax.ops.gpu import tree_attention as pallas_gpu
from eagle_jax.ops.tpu import tree_attention as pallas_tpu
from eagle_jax.sharding import parse, sharded
from eagle_jax.sharding.mesh import sharding_of
from eagle_jax.testing import TINY, cpu_backend


class Contract:
    """What every backend does; a new one is one more class that inherits this.

    Attributes:
        alone: how close a row alone is to the same row beside others.
    """

    alone = {"atol": 1e-6}

    @staticmethod
    def attend(case: AttentionCall) -> jax.Array:
        raise NotImplementedError

    @pytest.mark.parametrize("name", CASES)
    def test_it_is_the_average_over_what_each_row_sees(self, name: str):
        asked = CASES[name]
        case = made(asked)
        mixed = jax.jit(self.attend)(case)
        assert mixed.dtype == case.q.dtype
        tolerance = 1e-5 if asked.dtype == "float32" else 3e-2
        np.testing.assert_allclose(np.asarray(mixed, np.float64), expected(asked), atol=tolerance, rtol=tolerance)

    def test_what_lies_beyond_the_length_does_not_matter(self):
        case = made(CASES["a level of a drafted tree, in a window of a cache mostly empty"])
        beyond = (jnp.arange(case.slots)[None] >= case.length[:, None])[:, None, :, None]
        spoilt = tuple(jnp.where(beyond, 1e30, part) for part in case.prefix)
        run = jax.jit(self.attend)
        np.testing.assert_array_equal(run(case), run(dataclasses.replace(case, prefix=spoilt)))

    def test_a_row_is_the_same_alone(self):
        """The promise that texts rest on: neither the nodes nor the requests around a node change what it gets."""
        case = made(CASES["a tree of 26, two queries a key"])
        node, row = 17, 2
        alone = dataclasses.replace(
            jax.tree.map(lambda part: part[row:], case),
            q=case.q.reshape(*case.q.shape[:2], case.group, case.nodes, -1)[row:, :, :, node],
            visible=case.visible[row:, node : node + 1],
        )
        together = jax.jit(self.attend)(case).reshape(*case.q.shape[:2], case.group, case.nodes, -1)
        np.testing.assert_allclose(jax.jit(self.attend)(alone), together[row:, :, :, node], **self.alone)


class TestXLA(Contract):
    attend = staticmethod(xla.attend)


class TestXLAWhole(Contract):
    """As it is off CPUs."""

    @staticmethod
    def attend(case: AttentionCall) -> jax.Array:
        with mock.patch.object(jax, "default_backend", lambda: "gpu"):
            return xla.attend(case)


class TestPrefix(Contract):
    """XLA over the smallest of several prefixes that holds the longest row."""

    attend = staticmethod(xla.by_prefix)

    def test_the_smallest_that_holds_the_longest_row_is_read(self):
        """Masked values would show: nothing times what is no number is none."""
        case = made(Asked(3, 1100, (500, 10), group=2))
        assert xla.prefixes(case.slots) == [256, 512, 1024, 1100]
        beyond = (jnp.arange(case.slots) >= 512)[None, None, :, None]
        spoilt = dataclasses.replace(case, prefix=tuple(jnp.where(beyond, jnp.nan, part) for part in case.prefix))
        run = jax.jit(self.attend)
        np.testing.assert_array_equal(run(spoilt), run(case))
        longer = dataclasses.replace(spoilt, length=jnp.asarray([513, 10], jnp.int32))
        assert np.isnan(run(longer)).any(), "the next larger one is read from 513 slots on"


class TestParts(Contract):
    """As `TestXLAWhole`, with so little room for scores that nodes of one request are read some at a time."""

    most = 2**14

    @classmethod
    def attend(cls, case: AttentionCall) -> jax.Array:
        with mock.patch.object(attention_parts, "MAX_SCORES_BYTES", cls.most):
            return TestXLAWhole.attend(case)

    def test_scores_are_never_larger(self):
        case = made(CASES["a chunk of a prompt, of a cache mostly empty"])
        assert attention_parts.scores_size(case) > self.most
        found = re.findall(r"f32\[([\d,]+)\]", str(jax.make_jaxpr(self.attend)(case)))
        sizes = {4 * math.prod(map(int, dims.split(","))) for dims in found if dims.endswith(str(case.slots))}
        assert sizes and max(sizes) <= max(self.most, 4 * case.q.shape[1] * case.group * case.slots)
        whole = re.findall(r"f32\[([\d,]+)\]", str(jax.make_jaxpr(TestXLAWhole.attend)(case)))
        assert any(4 * math.prod(map(int, dims.split(","))) > self.most for dims in whole if dims.endswith("700"))


class TestPartsOfRequests(TestParts):
    """With room for the scores of one request of these cases, not for those of several."""

    most = 2**19


@pytest.mark.skipif(cpu_backend() is None, reason="the CPU backend is not used")
class TestCPU(Contract):
    """Without softcap, and in float32; what it refuses is `xla`'s. A row's sums are made in the same order anywhere."""

    alone = {"atol": 0, "rtol": 0}

    @staticmethod
    def attend(case: AttentionCall) -> jax.Array:
        try:
            return cpu_backend().tree_attention(case)
        except NotImplementedError as reason:
            assert case.softcap is not None, reason
            pytest.skip(str(reason))

    @pytest.mark.parametrize(
        "asked",
        [
            Asked(5, 300, (0, 2, 300), size=256, window=7),
            Asked(70, 130, (129, 64), group=3, size=48, beside=9),
            Asked(9, 64, (64, 63, 1), heads=5, size=80, chain=True),
            Asked(64, 65, (65,), heads=1, size=32, window=1),
        ],
        ids=["wide heads, windows before the text", "many fresh rows", "odd heads", "whole blocks"],
    )
    def test_edges_of_blocks(self, asked):
        np.testing.assert_allclose(jax.jit(self.attend)(made(asked)), expected(asked), atol=3e-5, rtol=1e-5)

    @pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
    def test_what_is_no_number_stays_in_the_rows_that_see_it(self, what):
        case = made(Asked(9, 130, (129, 64), group=3, size=48))
        query = dataclasses.replace(case, q=case.q.at[0, 0, 4].set(what))
        key = dataclasses.replace(case, prefix=(case.prefix[0].at[0, 1, 7].set(what), case.prefix[1]))
        clean, of_query, of_key = (np.array(jax.jit(self.attend)(each)) for each in (case, query, key))
        assert not np.isfinite(of_query[0, 0, 4]).any()
        of_query[0, 0, 4], of_key[0, 1] = clean[0, 0, 4], clean[0, 1]
        np.testing.assert_array_equal(of_query, clean)
        np.testing.assert_array_equal(of_key, clean)

    def test_its_gradient_is_that_of_xla(self):
        case = made(CASES["nothing is committed yet"])

        def total(attend, q):
            return jnp.sum(attend(dataclasses.replace(case, q=q)) ** 2)

        whole = functools.partial(xla.attend, block=case.slots)
        found, wanted = (jax.grad(functools.partial(total, way))(case.q) for way in (attend, whole))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


class TestPallasTPU(Contract):
    attend = staticmethod(functools.partial(pallas_tpu.attend, interpret=True))


class TestPallasGPU(Contract):
    attend = staticmethod(functools.partial(pallas_gpu.attend, interpret=True))

    @pytest.mark.parametrize(
        "asked",
        [
            Asked(7, 1200, (1100, 40, 650), group=2, window=200, chain=True),
            CASES["a chunk of a prompt, in a window of such a cache"],
        ],
        ids=["a window in the last of three spans, none, over two spans", "two tiles of rows"],
    )
    def test_blocks_before_the_window_are_not_read(self, asked: Asked):
        """Masked values would show: nothing times what is no number is none."""
        case = made(asked)
        assert case.first is not None
        begin = jnp.min(case.first, axis=1) // pallas_gpu.BLOCK * pallas_gpu.BLOCK
        before = (jnp.arange(case.slots)[None] < begin[:, None])[:, None, :, None]
        assert before.any()
        spoilt = tuple(jnp.where(before, jnp.nan, part) for part in case.prefix)
        run = jax.jit(self.attend)
        mixed = run(dataclasses.replace(case, prefix=spoilt))
        np.testing.assert_array_equal(mixed, run(case))
        np.testing.assert_allclose(mixed, expected(asked), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", [pallas_tpu.attend, pallas_gpu.attend])
def test_kernels_are_for_caches(kernel: Callable[[AttentionCall], jax.Array]):
    case = made(CASES["a chunk of a prompt"])
    empty = dataclasses.replace(case, prefix=tuple(part[:, :, :0] for part in case.prefix))
    with pytest.raises(NotImplementedError, match="no committed prefix"):
        kernel(empty)


def attend(case: AttentionCall) -> jax.Array:
    whole = functools.partial(xla.attend, block=case.slots)
    return dispatch.dispatch("tree_attention", xla.attend, case, differentiable=whole)


def test_what_falls_back_says_why(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    asked = CASES["a chunk of a prompt"]
    monkeypatch.setenv(VARIABLE, "tree_attention:gpu")
    monkeypatch.setattr(dispatch, "_logged", set())
    with caplog.at_level(logging.WARNING, logger="eagle_jax.ops"):
        mixed = [attend(made(asked)) for _ in range(2)][1]
    np.testing.assert_allclose(mixed, expected(asked), atol=1e-5)
    assert caplog.messages == ["gpu does not compute tree_attention: there is no GPU"]
    monkeypatch.setenv(VARIABLE, "tree_attention:cuda")
    with pytest.raises(
        ValueError, match=f"{VARIABLE}='tree_attention:cuda' has 'tree_attention:cuda'; expected a back"
    ):
        attend(made(asked))


def test_on_a_mesh_each_device_takes_its_own_rows_and_heads(monkeypatch):
    monkeypatch.setenv(VARIABLE, "tpu")
    case = made(dataclasses.replace(CASES["a chunk of a prompt"], lengths=(0, 64, 128, 5)))
    sharding = sharding_of("data:2,model:2", dataclasses.replace(TINY, num_key_value_heads=2))
    assert sharding is not None and parse("data:2,model:2") == sharding.sizes

    def program(case: AttentionCall, sharding: object = None) -> dict[str, list[dict[str, jax.Array]]]:
        return {"layers": [{"k": attend(case)}]}  # lies as a cache does

    placed = sharding.put(case, sharding.state)
    compiled = jax.jit(sharded(program), static_argnames="sharding").lower(placed, sharding=sharding).compile()
    text = compiled.as_text()
    assert "all-gather" not in text and "all-to-all" not in text
    np.testing.assert_allclose(compiled(placed)["layers"][0]["k"], xla.attend(case), atol=1e-5)


def test_the_kernel_for_gpus_lowers_for_cuda():
    case = made(dataclasses.replace(CASES["60 nodes, bfloat16, softcap"], size=96, group=4, window=50))
    assert "triton" in lowered(pallas_gpu.attend, case)


def test_heads_share_keys_in_order():
    """Query head h reads kv head h // group, as checkpoints have them."""
    asked = CASES["a tree of 26, two queries a key"]
    case = made(asked)
    q = case.q.reshape(3, 4, 26, 16)
    with pytest.raises(ValueError, match="a cache of 1 rows for 2 requests; pass cache_rows"):
        few = tuple(part[:1] for part in case.prefix)
        tree_attention(q[:2], tuple(part[:2] for part in case.fresh), case.visible[:2], few, case.length[:2])
    got = tree_attention(q, case.fresh, case.visible, case.prefix, case.length, scale=1.0)
    np.testing.assert_allclose(got.reshape(case.q.shape), expected(asked), atol=1e-5)


def test_rows_of_one_node_each_are_rows_that_only_it_is_shown():
    """Without a prefix, as heads are trained: two more steps, of which node i sees the i-th rows."""
    whole = made(Asked(5, 0, (0, 0), group=2, beside=10, softcap=3.0))
    named, more = whole.visible[:, :, 10:], jnp.broadcast_to(jnp.eye(5, dtype=bool)[None], (2, 5, 5))
    shown = dataclasses.replace(whole, visible=jnp.concatenate([named, more, more], axis=2))
    aligned = dataclasses.replace(whole, visible=named)
    np.testing.assert_allclose(xla.attend(aligned), xla.attend(shown), atol=1e-6)
    for kernel in (pallas_tpu.attend, pallas_gpu.attend):
        with pytest.raises(NotImplementedError):
            kernel(aligned)
