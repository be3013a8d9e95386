"""What the compile-only scripts share: the decoding loop's arguments as shapes, and devices that are not there."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

import eagle_jax  # noqa: F401  # its guard comes before the first computation
from eagle_jax.configs.dflash import ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, MaskConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import known_pair
from eagle_jax.converters.hub.sizes import HeadSizes
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.sampling import GREEDY, Sampling, Settings, request_keys
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.dflash import DFlashDrafter
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.peagle import PEagle
from eagle_jax.inspection import plan
from eagle_jax.loop.decode import advance
from eagle_jax.loop.prefill import prefill
from eagle_jax.loop.state import BatchParams
from eagle_jax.models.quant import schemes_of
from eagle_jax.sharding import AXES, DATA, Sharding, with_repeated_kv_heads

# libtpu asks the machine for these otherwise, when it is loaded.
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")

PARALLEL = ("peagle", "dflash", "causal", "dspark", "dflash2")  # methods that draft in one pass
TREES = {16: (16, 5, 4), 60: (60, 7, 10), 256: (256, 7, 10), 1024: (1024, 7, 16)}  # by nodes


def tpu_mesh(topology: str, shape: Sequence[int]) -> Sharding:
    """The first chips of a slice such as "v5e:2x2", as a mesh of this shape."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    grid = np.array(devices[: np.prod(shape)]).reshape(tuple(shape))
    return Sharding(Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 2))


def one_device() -> Sharding:
    """A mesh of one device, in the place of a chip that is not there."""
    return Sharding(Mesh(np.array(jax.devices("cpu")[:1]).reshape(1, 1), AXES))


def policy_of(nodes: int) -> DynamicTree | None:
    """The tree of so many nodes that is compiled; None is plain decoding."""
    return DynamicTree(*TREES[nodes]) if nodes else None


@contextlib.contextmanager
def platform(name: str) -> Iterator[None]:
    """While tracing and compiling: the default backend is `name`."""
    with mock.patch("jax.default_backend", return_value=name):
        yield


def configs(
    target: str, layers: int | None, method: str | None = None, block: int = 8
) -> tuple[LlamaConfig, plan.HeadConfig | None]:
    """Configurations of a published pair, of which the target has only so many layers.

    Args:
        method: one of `PARALLEL`, whose head takes the place of the pair's own, in the sizes published for Qwen3-8B.
        block: slots of its blocks; it drafts one token less.
    """
    config, head = plan.configs(target)
    if method is not None:
        head = parallel_head(method, target, config, block)
    if layers is None:
        return config, head
    if hasattr(head, "taps"):
        head = dataclasses.replace(head, taps=tuple(min(tap, layers) for tap in head.taps))
    return dataclasses.replace(config, num_hidden_layers=layers), head


def parallel_head(method: str, target: str, config: LlamaConfig, block: int) -> plan.HeadConfig:
    """A head that drafts `block - 1` tokens in one pass."""
    pair = known_pair(target)
    if pair is None:
        raise ValueError(f"{target} is no name of a pair, whose sizes the head of --method has; see eagle-jax models")
    dflash = HeadSizes(target=pair.target_sizes, kv_heads=config.num_key_value_heads, block=block).config
    assert isinstance(dflash, DFlashConfig)
    own, everywhere = dflash.layers, tuple(range(dflash.layers.num_hidden_layers))
    if method == "peagle":
        layers = dataclasses.replace(own, num_hidden_layers=4, qk_norm=False)
        sizes = {"target_hidden_size": config.hidden_size, "draft_vocab_size": 32000, "own_embedding": True}
        mask = MaskConfig(token_id=dflash.mask_token_id, num_drafted=block - 1)
        return Eagle3Config(layers=layers, taps=dflash.taps, **sizes, mask=mask)
    changes: dict[str, dict[str, Any]] = {
        "dflash": {},
        "causal": {"causal_layers": everywhere},
        "dspark": {"markov": MarkovConfig(256, "vanilla"), "sample_from_anchor": True, "block_size": block - 1},
        "dflash2": {
            "convolution": ConvolutionConfig(2, 16),
            "selector": SelectorConfig(256, 16),
            "layers": dataclasses.replace(own, sliding_window=2048),
        },
    }
    return dataclasses.replace(dflash, **changes[method])


def drafting(head: Any, policy: DynamicTree) -> Drafter:
    """The drafter of a head, with a tree no deeper than it drafts."""
    if isinstance(head.config, DFlashConfig):
        depth_steps = min(policy.depth, head.num_drafted) - 1
        return DFlashDrafter(head=head, policy=dataclasses.replace(policy, depth_steps=depth_steps))
    if head.num_drafted is not None:
        depth_steps = min(policy.depth, head.num_drafted) - 1
        return PEagle(head=head, policy=dataclasses.replace(policy, depth_steps=depth_steps))
    return Eagle(head=head, policy=policy)


def arguments(
    config: LlamaConfig,
    head: plan.HeadConfig | None,
    policy: DynamicTree | None,
    sharding: Sharding,
    *,
    requests: int,
    slots: int,
    quantize: str | None,
    mode: Sampling = GREEDY,
    logprobs: int = 0,
    dtype: Any = jnp.bfloat16,
) -> tuple[Any, ...]:
    """Target, drafter, requests and state of the loop as shapes with shardings; without a policy it decodes plainly.

    Args:
        mode, logprobs: of the prefill that the state comes from; `logprobs` is what the state has room for.
    """
    config = with_repeated_kv_heads(config, sharding.sizes)
    scheme, head_scheme = schemes_of(quantize)
    target = placed(plan.target_shapes(config, dtype, scheme), sharding, sharding.target)
    drafter: Any = Plain()
    if head is not None and policy is not None:
        head = dataclasses.replace(head, layers=with_repeated_kv_heads(head.layers, sharding.sizes))
        drafter = placed(drafting(plan.head_shapes(head, dtype, head_scheme), policy), sharding, sharding.head)
    rows = requests * sharding.sizes[DATA]
    floats, whole = jnp.zeros(rows, jnp.float32), jnp.ones(rows, jnp.int32)
    settings = Settings(floats, whole, floats, floats, request_keys([0] * rows, [0] * rows))
    request, tokens = jax.eval_shape(
        lambda: (
            BatchParams(settings, whole, whole, whole[:, None], top_logprobs=whole > 0 if logprobs > 1 else None),
            jnp.zeros((rows, slots + 16), jnp.int32),
        )
    )
    request = placed(request, sharding, sharding.state)
    fixed = dict(mode=mode, slots=slots, chunk=256, logprobs=logprobs, sharding=sharding)
    state = jax.eval_shape(lambda *of: prefill(*of, **fixed), target, drafter, request, tokens)
    return target, drafter, request, placed(state, sharding, sharding.state)


def lowered(of: tuple[Any, ...], **fixed: Any) -> Any:
    """The whole loop, traced."""
    program = jax.jit(advance, static_argnames=("mode", "sharding"), donate_argnames=("state",))
    return program.lower(*of, jax.ShapeDtypeStruct((), jnp.int32), **fixed)


def placed(tree: Any, sharding: Sharding, rules: Any) -> Any:
    """The same shapes, with the shardings of their arrays."""

    def one(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        place = sharding.named(rules, jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    return jax.tree_util.tree_map_with_path(one, tree)


def copies_of_caches(program: str, slots: int) -> int:
    """Operations of a compiled program that copy an array of so many slots. What a TPU reads ahead into VMEM, whose
    memory space is S(1), is none.
    """
    copies = re.findall(rf"= (\(?\w+\[\d+,\d+,{slots},\d+\][^=]*) copy(?:-start)?\(", program)
    return sum("S(1)" not in copy for copy in copies)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.3f} GB"
