"""One program over many devices: same text, weights in their shards, little communication and none for the caches."""

import dataclasses
import functools
import json
import pathlib
import re
import socket
import subprocess
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import params_of
from jax import P

import eagle_jax
from eagle_jax.configs.dflash import ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, MaskConfig
from eagle_jax.configs.target import Experts
from eagle_jax.converters import load_target, save_head, save_target
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.drafters.base import Plain
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.inspection import plan
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import BatchParams
from eagle_jax.methods.registry import METHODS
from eagle_jax.models import layout
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import quantize_params, scheme_of
from eagle_jax.scheduling import programs
from eagle_jax.sharding import HEAD, TARGET, Sharding, fitting, placement, sharding_of, spec_of
from eagle_jax.testing import TINY, synthetic_head3, synthetic_hydra, synthetic_pair

CONFIG = dataclasses.replace(TINY, vocab_size=64, num_hidden_layers=1)
MIXTURE = dataclasses.replace(
    CONFIG, experts=Experts(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True)
)
TREE = DynamicTree(4, 1, 2)
ASKED = dict(max_new_tokens=12, tree=(4, 1, 2), temperature=0.8, seed=3)
ROWS, SLOTS = 4, 128


def laid(model, head_dim=CONFIG.head_dim):
    params = jax.tree.map(lambda leaf: leaf, model.params)
    return dataclasses.replace(model, params=layout.for_decoding(params, head_dim, sharded=True))


def ragged_request() -> tuple[BatchParams, jax.Array]:
    """Four prompts; two rows are greedy, two at temperature 1."""
    lengths = np.array([5, 3, 7, 4], np.int32)
    tokens = np.random.default_rng(0).integers(0, 60, (ROWS, SLOTS + 8)).astype(np.int32)
    return params_of(lengths, 16, temperature=[0.0, 1.0, 1.0, 0.0]), jnp.asarray(tokens)


def decoded(target, drafter, sharding):
    """Final state, and the compiled loop."""
    request, tokens = ragged_request()
    if sharding is not None:
        target, drafter = sharding.put(target, sharding.target), sharding.put(drafter, sharding.head)
        request, tokens = sharding.put((request, tokens), sharding.state)
    fixed = dict(mode=Sampling(sampled=True, filtered=False), sharding=sharding)
    given = (target, drafter, request)
    state = compiled_prefill()(*given, tokens, slots=SLOTS, chunk=64, logprobs=False, **fixed)
    loop = compiled_advance().lower(*given, state, jnp.asarray(1000, jnp.int32), **fixed).compile()
    return loop(*given, state, jnp.asarray(1000, jnp.int32)), loop


BLOCKS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dspark": {"markov": MarkovConfig(8, "vanilla"), "sample_from_anchor": True},
    "dflash2": {"selector": SelectorConfig(8, 6), "convolution": ConvolutionConfig(2, 16)},
}


def dflash_head(**parts: Any) -> DFlash:
    sizes = {"layers": CONFIG, "taps": (0, 1), "target_hidden_size": CONFIG.hidden_size}
    config = DFlashConfig(**sizes, block_size=4, mask_token_id=5, own_embedding=True, **parts)
    return DFlash.init(config, jax.random.key(1))


def peagle_head() -> Head3:
    sizes = {"layers": CONFIG, "taps": (0, 1), "target_hidden_size": CONFIG.hidden_size, "own_embedding": True}
    mask = MaskConfig(token_id=5, num_drafted=3)
    config = Eagle3Config(**sizes, draft_vocab_size=CONFIG.vocab_size, mask=mask)
    return Head3.init(config, jax.random.key(1))


def answers(state) -> list[list[int]]:
    return [row[: length + 1].tolist() for row, length in zip(np.asarray(state.tokens), state.length, strict=True)]


def collectives(loop) -> list[tuple[str, tuple[int, ...]]]:
    """Kind and shape of everything that travels between devices."""
    line = r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
    return [
        (kind, tuple(int(size) for size in shape.split(",") if size))
        for shapes, kind in re.findall(line, loop.as_text())
        for shape in re.findall(r"\w+\[([\d,]*)\]", shapes)
    ]


@pytest.fixture(scope="module")
def pair():
    return synthetic_pair(CONFIG)


@pytest.fixture(scope="module")
def plainly(pair):
    """What one device writes, without a draft."""
    return answers(decoded(laid(pair[0]), Plain(), None)[0])


@pytest.fixture(scope="module")
def folders(pair, tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    save_target(pair[0], root / "target")
    save_head(pair[1], root / "head")
    return root / "target", root / "head"


@pytest.mark.matrix
@pytest.mark.parametrize("method, mesh", [("plain", "data:2"), ("eagle1", "model:2"), ("eagle3", "data:2,model:2")])
def test_same_text_on_several_devices_and_little_travels(pair, plainly, method, mesh):
    target, head = pair
    head = {"plain": None, "eagle1": head, "eagle3": synthetic_head3(target, taps=(0, 1))}[method]
    sharding = sharding_of(mesh, CONFIG)
    drafter = Plain() if head is None else Eagle(head=laid(head), policy=TREE)
    state, loop = decoded(laid(target), drafter, sharding)
    assert answers(state) == plainly
    if head is not None:
        assert int(state.steps) < 15  # 16 tokens, the first of them from the prompt

    # Nothing of a cache travels and nothing whole over the vocabulary. Sums: embedding, attention, MLP of each pass.
    travels = collectives(loop)
    assert not [shape for _, shape in travels if SLOTS in shape or CONFIG.vocab_size in shape]
    assert {kind for kind, _ in travels} <= {"all-reduce", "all-gather"}
    hidden = [shape for kind, shape in travels if kind == "all-reduce" and shape[-1:] == (CONFIG.hidden_size,)]
    assert len(hidden) == {"plain": 0, "eagle1": 3 + 2 * 4, "eagle3": 3 + 2 * 3 + 1}[method]

    # What it is given lies on each device as the plan says from configurations alone.
    drafting = None if head is None else head.config
    planned = plan.plan_of_configs(
        CONFIG, drafting, sharding.sizes, ROWS // sharding.sizes["data"], SLOTS, 4, jnp.float32
    )
    kept = planned.total - planned.buffers
    assert abs(loop.memory_analysis().argument_size_in_bytes - kept) < 0.05 * kept

    # Caches stay in their places, updated in place.
    cache, sizes = state.cache.k[0], sharding.sizes
    assert cache.sharding.shard_shape(cache.shape)[:2] == (ROWS // sizes["data"], 2 // sizes["model"])
    held = sum(leaf.nbytes for leaf in jax.tree.leaves((state.cache.k, state.cache.v)))
    assert loop.memory_analysis().alias_size_in_bytes >= held // sharding.mesh.size


@pytest.mark.matrix
# weights of their own; a table per request
@pytest.mark.parametrize("kind", ["hydra", "dflash", "dspark", "dflash2", "peagle", "token-recycling"])
def test_other_drafters_give_the_same_text_on_several_devices(pair, plainly, kind):
    target = pair[0]
    sharding = sharding_of("data:2,model:2", CONFIG)
    heads = {name: functools.partial(dflash_head, **parts) for name, parts in BLOCKS.items()} | {"peagle": peagle_head}
    model = types.SimpleNamespace(
        head=laid(heads[kind]() if kind in heads else synthetic_hydra(target)), calibration=None
    )
    method = "dflash" if kind in BLOCKS else kind
    policy = None if METHODS[method].trees is None else METHODS[method].trees(model, True)
    state, loop = decoded(laid(target), METHODS[method].make(model, policy, True), sharding)
    assert answers(state) == plainly
    assert not [shape for _, shape in collectives(loop) if SLOTS in shape]


@pytest.mark.matrix
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_mixture_of_experts_sums_once_behind_its_experts(quantize):
    target = LM.init(MIXTURE, jax.random.key(0))
    if quantize is not None:
        target = dataclasses.replace(target, params=quantize_params(target.params, scheme_of(quantize)))
    target = laid(target)
    sharding = sharding_of("data:2,model:2", MIXTURE)
    state, loop = decoded(target, Plain(), sharding)
    assert answers(state) == answers(decoded(target, Plain(), None)[0])
    hidden = [shape for _, shape in collectives(loop) if shape[-1:] == (CONFIG.hidden_size,)]
    assert len(hidden) == 3 and all(np.prod(shape) == ROWS // 2 * CONFIG.hidden_size for shape in hidden)


@pytest.mark.proof
def test_loaded_over_a_mesh_it_is_the_same_model(folders):
    """Four kv-head copies for a target with two, a batch of three, streams, and no program compiled twice."""
    alone, spread = (eagle_jax.load(*folders, mesh=mesh) for mesh in (None, "data:1,model:4"))
    assert spread.target.config.num_key_value_heads == 4
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    wanted = [result.token_ids for result in eagle_jax.generate(alone, prompts, **ASKED)]
    assert [result.token_ids for result in eagle_jax.generate(spread, prompts, **ASKED)] == wanted
    queued = eagle_jax.generate(spread, prompts * 2, batch_size=3, **ASKED)  # finished rows make room
    assert [result.token_ids for result in queued] == wanted * 2
    before = programs.compiled()
    again = eagle_jax.generate(spread, [prompt[::-1] for prompt in prompts], **ASKED)
    eagle_jax.generate(spread, [*prompts[::-1], *prompts[:1]], batch_size=3, **ASKED)
    chunks = list(eagle_jax.stream(spread, prompts, steps=2, **ASKED))
    assert programs.compiled() == before
    assert len(again) == 3 and [sum((c.token_ids for c in chunks if c.index == i), []) for i in range(3)] == wanted


def test_weights_go_straight_into_their_shards(folders, pair, monkeypatch):
    put, largest = jax.make_array_from_callback, []

    def watched(shape, where, read):
        largest.append(int(np.prod(shape)))
        return put(shape, where, read)

    monkeypatch.setattr(jax, "make_array_from_callback", watched)
    sharding = sharding_of("data:2,model:2", CONFIG)
    loaded = load_target(folders[0], sharding=sharding)
    leaves = dict(jax.tree_util.tree_leaves_with_path(loaded.params))
    assert len(largest) == len(leaves) and max(largest) == CONFIG.vocab_size * CONFIG.hidden_size
    for path, leaf in leaves.items():
        spec = spec_of(TARGET, jax.tree_util.keystr(path, simple=True, separator="/"))
        assert len(leaf.addressable_shards) == 4
        assert leaf.addressable_shards[0].data.size == leaf.size // (2 if "model" in str(spec) else 1)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, pair[0].params)


def test_every_matrix_is_sharded_in_both_layouts(pair):
    """What stays whole is small: norms, routers, biases of sums. DFlash 2, left out, keeps what makes its kernels."""
    target, head = pair
    models = [(target, TARGET), (LM.init(MIXTURE, jax.random.key(0)), TARGET)]
    models += [(head, HEAD), (peagle_head(), HEAD), (synthetic_head3(target, taps=(0, 1)), HEAD)]
    models += [(dflash_head(**parts), HEAD) for kind, parts in BLOCKS.items() if kind != "dflash2"]
    for model, rules in models:
        for params in (model.params, laid(model).params):
            for path, leaf in jax.tree_util.tree_leaves_with_path(params):
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                spread = fitting(spec_of(rules, name), leaf.shape, {"data": 1, "model": 2}) != P()
                assert spread == (leaf.ndim > 1 and "mlp/gate/" not in name), name


def test_rules_of_ones_own_take_the_place_of_ours(folders):
    mesh = jax.make_mesh((1, 2), ("data", "model"), devices=jax.devices()[:2])
    own = Sharding(mesh, target=((r"lm_head", P(None, "model")),))
    params = load_target(folders[0], sharding=sharding_of(own, CONFIG)).params
    assert params["layers_0"]["self_attn"]["o_proj"]["weight"].sharding.is_fully_replicated
    assert placement(params["lm_head"]["weight"].sharding)[1] == ((), ("model",))
    with pytest.raises(ValueError, match="expected a pattern of paths and a jax.P of"):
        Sharding(mesh, head=(("fc", P("heads")),))


def test_a_plan_chooses_as_few_chips_along_model_as_fit(folders):
    chosen = functools.partial(plan.plan, folders[0], chips=4, slots=64)
    whole = chosen(memory=1e9)
    assert whole.mesh == {"data": 4, "model": 1}
    assert chosen(memory=float(whole.total)).mesh == {"data": 2, "model": 2}  # a tenth stays free
    assert chosen(memory=1.0).mesh == {"data": 1, "model": 4}


@pytest.mark.proof
def test_two_processes_write_what_one_device_does(folders, tmp_path):
    """Two processes with two devices each, which meet over loopback."""
    target, head = map(str, folders)
    mixture, mixture_head = synthetic_pair(dataclasses.replace(MIXTURE, intermediate_size=16), strength=0.5)
    save_target(mixture, tmp_path / "mixture")
    save_head(mixture_head, tmp_path / "mixture_head", target=mixture)
    deep, _ = synthetic_pair(dataclasses.replace(CONFIG, num_hidden_layers=3), strength=0.5)
    save_target(deep, tmp_path / "deep")
    save_head(synthetic_head3(deep, taps=(0, 1, 2)), tmp_path / "head3", target=deep)
    mixed = {"target": str(tmp_path / "mixture"), "head": str(tmp_path / "mixture_head")}
    cases = [
        ({"target": target}, ASKED | {"tree": "auto"}),
        ({"target": target, "head": head}, ASKED),
        ({"target": target, "head": head}, ASKED | {"temperature": 0.0, "tree": "eagle1"}),
        ({"target": str(tmp_path / "deep"), "head": str(tmp_path / "head3")}, ASKED),
        ({"target": target, "head": head, "quantize": "int8"}, ASKED),
        (mixed, ASKED),
        (mixed | {"quantize": "int8"}, ASKED | {"temperature": 0.0}),
    ]
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    alone = [eagle_jax.generate(eagle_jax.load(**loaded), prompts, **asked) for loaded, asked in cases]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    worker = pathlib.Path(__file__).with_name("one_of_two.py")
    given = [sys.executable, str(worker), str(port), json.dumps(cases), json.dumps(prompts)]
    both = [subprocess.Popen([*given, str(number)], stdout=subprocess.PIPE, text=True) for number in range(2)]
    said = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    for out in said:
        assert json.loads(out.splitlines()[-1]) == [[result.token_ids for result in results] for results in alone]
