"""The head that a run begins with: fresh, of the method and sizes asked for, or an earlier one."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from eagle_jax.configs import heads as head_configs
from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, EagleConfig, HydraConfig, MaskConfig, MedusaConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import load_head, resolve
from eagle_jax.converters.heads.eagle import default_taps
from eagle_jax.models.any_head import AnyHead, Params
from eagle_jax.models.dflash import DFlash
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.heads import Hydra, Medusa
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import dense_params
from eagle_jax.ops.quantized import dense
from eagle_jax.sharding import to_host
from eagle_jax.training.settings import HeadConfig

METHODS: Mapping[type[AnyHead], str] = {Head: "eagle1", Head3: "eagle3", Medusa: "medusa", Hydra: "hydra"}
BLOCK_SIZES = {"dflash": 16, "dspark": 7, "dflash2": 8}


def first(
    config: HeadConfig,
    target: LM,
    ids: Int[np.ndarray, " d"] | None,
    key: jax.Array,
    *,
    steps: int = 1,
    sizes: LlamaConfig | None = None,
) -> AnyHead:
    """The head to begin with, in float32, on one device.

    Args:
        ids: the tokens that it drafts, ascending; None drafts all.
        steps: draft steps that are trained: heads of Medusa and Hydra.
        sizes: the target's as stored, where it keeps key/value heads several times (`sharding.widened`).

    Raises:
        ValueError: the earlier head is of another method, or the sizes do not fit.
    """
    sizes = target.config if sizes is None else sizes
    if config.start is not None:
        return _earlier(config, config.start, target, ids)
    if config.method in ("medusa", "hydra"):
        return _parallel(config, target, sizes, steps, key)
    layers = _layers(config, sizes, config.layers)
    if config.method in ("eagle3", "peagle"):
        return _eagle3(config, layers, target, ids, key, steps)
    if config.method in BLOCK_SIZES:
        return _dflash(config, layers, target, ids, key)
    head = Head.init(EagleConfig(layers=layers, fc_bias=config.bias), key, jnp.float32)
    return head if ids is None else head.trimmed(target, ids)


def _earlier(config: HeadConfig, folder: str, target: LM, ids: Int[np.ndarray, " d"] | None) -> AnyHead:
    """A head of the same method, with which come objective and optimizer; one that drafts all is cut to `ids`."""
    head = load_head(resolve(folder), target, "float32")
    if isinstance(head, Head) and head.config.normed:
        raise ValueError(
            f"head.start={folder} holds a target's own layer for multi-token prediction (MTP), which is not trained "
            "further; name an EAGLE head"
        )
    method = method_of(head)
    if method != config.method:
        raise ValueError(
            f"head.start={folder} holds a head of {method} and head.method is {config.method}; set head.method: "
            f"{method}, or name another head"
        )
    head = dataclasses.replace(head, params=dense_params(head.params))
    if ids is None:
        return head
    assert isinstance(head, Head), "HeadConfig has refused the others"
    if head.config.draft_vocab_size is not None:
        raise ValueError(
            f"head.draft_vocab_size={len(ids)}, and the head in head.start={folder} drafts {head.draft_vocab_size} "
            "tokens of its own; leave head.draft_vocab_size out, or name a head that drafts all"
        )
    return head.trimmed(target, ids)


def method_of(head: AnyHead) -> str:
    """The method of a head, as `HeadConfig.method` names it."""
    if isinstance(head, Head3) and head.config.mask is not None:
        return "peagle"
    if not isinstance(head, DFlash):
        return METHODS[type(head)]
    c = head.config
    if c.selector is not None or c.convolution is not None:
        return "dflash2"
    return "dflash" if c.markov is None and c.confidence is None else "dspark"


def taps_of(config: HeadConfig, layers: int) -> tuple[int, ...]:
    """The target layers that an EAGLE-3 or P-EAGLE head reads: those asked for, or 2, the middle one and N - 3."""
    if config.taps is None:
        return default_taps(layers) or (0, layers // 2, layers)
    if not all(0 <= tap <= layers for tap in config.taps):
        raise ValueError(f"head.taps={config.taps}; expected layers 0 to {layers - 1}, or {layers} for behind the last")
    return config.taps


def dflash_taps(config: HeadConfig, layers: int) -> tuple[int, ...]:
    """The target layers that a DFlash head reads: those asked for, or as published five from the second to the last but
    two, evenly.
    """
    if config.taps is None and layers >= 8:
        return head_configs.dflash_taps(layers)
    return taps_of(config, layers)


def _dflash(
    config: HeadConfig, layers: LlamaConfig, target: LM, ids: Int[np.ndarray, " d"] | None, key: jax.Array
) -> DFlash:
    """Begins at random, as published, beside the target's embedding and output matrix, or rows of the latter; a
    selector chooses at first what the slots alone would.
    """
    if target.config.scales_edges:
        what = "which scales its embeddings or logits (Gemma, Granite)"
        raise ValueError(f"method {config.method} for a target {what}; expected another one")
    assert config.mask_token_id is not None, "HeadConfig has refused it"
    head_config = DFlashConfig(
        layers=dataclasses.replace(layers, qk_norm=True, sliding_window=_window(config)),
        taps=dflash_taps(config, target.config.num_hidden_layers),
        target_hidden_size=target.config.hidden_size,
        block_size=config.block_size or BLOCK_SIZES[config.method],
        sample_from_anchor=config.method == "dspark",
        mask_token_id=config.mask_token_id,
        causal_layers=tuple(range(config.layers)) if config.causal else (),
        num_target_layers=target.config.num_hidden_layers,
        draft_vocab_size=None if ids is None else len(ids),
        **_edges(config, target.config.vocab_size if ids is None else len(ids)),
    )
    params = DFlash.init(head_config, key, jnp.float32).params
    if head_config.selector is not None:
        selector = params["candidate_selector"]
        blank = jnp.zeros_like(selector["successor_codebook"])
        params |= {"candidate_selector": selector | {"successor_codebook": blank}}
    if ids is None:
        return DFlash(params=params, config=head_config)
    params |= {"lm_head": {"weight": _output_matrix(target)[ids]}}
    return DFlash(params=params, config=head_config, vocabulary=jnp.asarray(ids, jnp.int32))


def _window(config: HeadConfig) -> int | None:
    return 2048 if config.method == "dflash2" and config.window is None else config.window


def _edges(config: HeadConfig, drafted: int) -> dict[str, Any]:
    """What DSpark's and DFlash 2's heads have beside a DFlash head, as fields of its config."""
    if config.method == "dspark":
        has_confidence = config.confidence is None or config.confidence
        return {
            "markov": MarkovConfig(config.markov_rank or 256, config.markov or "vanilla"),
            "confidence": ConfidenceConfig(with_markov=True) if has_confidence else None,
        }
    if config.method == "dflash2":
        return {
            "convolution": ConvolutionConfig(config.conv_kernel_size or 2, config.conv_group_size or 16),
            "selector": SelectorConfig(config.selector_rank or 256, min(config.selector_top_k or 16, drafted)),
        }
    return {}


def _eagle3(
    config: HeadConfig, layers: LlamaConfig, target: LM, ids: Int[np.ndarray, " d"] | None, key: jax.Array, steps: int
) -> Head3:
    """Begins with the target's final norm and output matrix, and an `fc` that passes on the highest tap: what it drafts
    is at first what the target would say there, which is far better than chance. P-EAGLE's has an embedding of its own,
    to learn the mask token's, and begins with the target's.
    """
    head_config = _eagle3_config(config, layers, target.config, None if ids is None else len(ids), steps)
    params = Head3.init(head_config, key, jnp.float32).params
    highest = jnp.eye(layers.hidden_size, dtype=jnp.float32)
    output = _output_matrix(target)
    params |= {
        "fc": {"weight": params["fc"]["weight"].at[:, -len(highest) :].add(highest)},
        "norm": jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), to_host(target.params["norm"])),
        "lm_head": {"weight": output if ids is None else output[ids]},
    }
    if head_config.own_embedding:
        params |= {"embed_tokens": {"embedding": jnp.asarray(to_host(target.table), jnp.float32)}}
    return Head3(params=params, config=head_config, vocabulary=None if ids is None else jnp.asarray(ids, jnp.int32))


def _eagle3_config(
    config: HeadConfig, layers: LlamaConfig, target: LlamaConfig, drafted: int | None, steps: int = 1
) -> Eagle3Config:
    mask = None
    if config.method == "peagle":
        if target.scales_edges:
            what = "which scales its embeddings or logits (Gemma, Granite)"
            raise ValueError(f"method peagle for a target {what}; expected another one")
        assert config.mask_token_id is not None, "HeadConfig has refused it"
        mask = MaskConfig(token_id=config.mask_token_id, num_drafted=steps)
    return Eagle3Config(
        layers=layers,
        taps=taps_of(config, target.num_hidden_layers),
        target_hidden_size=target.hidden_size,
        draft_vocab_size=drafted or target.vocab_size,
        fc_norm=config.fc_norm,
        norm_output=config.norm_output,
        own_embedding=mask is not None,
        mask=mask,
    )


def shapes(config: HeadConfig, target: LlamaConfig) -> Head | Head3:
    """The EAGLE head that `first` makes for such a target, of shapes; for plans.

    Raises:
        ValueError: another method, or an earlier head to go on from, whose files alone tell its sizes.
    """
    if config.method not in ("eagle1", "eagle3") or config.start is not None:
        raise ValueError(f"head.method={config.method}, start={config.start}; expected a new EAGLE head to plan for")
    layers, drafted = _layers(config, target, config.layers), config.draft_vocab_size
    if config.method == "eagle3":
        head_config = _eagle3_config(config, layers, target, drafted)
        return jax.eval_shape(lambda: Head3.init(head_config, jax.random.key(0), jnp.float32))
    small = EagleConfig(layers=layers, fc_bias=config.bias, draft_vocab_size=drafted)
    return jax.eval_shape(lambda: Head.init(small, jax.random.key(0), jnp.float32))


def _parallel(config: HeadConfig, target: LM, c: LlamaConfig, steps: int, key: jax.Array) -> Medusa | Hydra:
    """Begins as published: blocks that pass on what they read, and the target's output matrix. Of what Hydra's first
    blocks read they pass on the hidden state.
    """
    sizes = {"hidden_size": c.hidden_size, "vocab_size": c.vocab_size, "num_heads": steps, "num_layers": config.layers}
    if config.method == "medusa":
        medusa = Medusa.init(MedusaConfig(**sizes), key, jnp.float32)
        return dataclasses.replace(medusa, params=_passing_on(medusa.params, target))
    hydra = Hydra.init(HydraConfig(**sizes, prefix=_layers(config, c, 1) if config.prefix else None), key, jnp.float32)
    return dataclasses.replace(hydra, params=_passing_on(hydra.params, target))


def _passing_on(params: Params, target: LM) -> Params:
    output = _output_matrix(target)

    def first_value(path: tuple, value: jax.Array) -> jax.Array:
        names = [part.key for part in path]
        if names[-2:] == ["linear", "weight"]:
            return jnp.zeros_like(value)
        if names[-2:] == ["res_connection", "weight"]:
            return value.at[:, : len(value)].add(jnp.eye(len(value)))
        return output if names[-2:] == ["lm_head", "weight"] else value

    return jax.tree_util.tree_map_with_path(first_value, params)


def _output_matrix(target: LM) -> jax.Array:
    return jnp.asarray(to_host(dense(target.output_matrix)), jnp.float32)


def _layers(config: HeadConfig, target: LlamaConfig, count: int) -> LlamaConfig:
    """The draft layers: the target's attention, dense, without a window.

    Heads of targets with latent attention share a small part of each key and have no keys and values of their own; a
    draft layer has as published ones for DeepSeek-V3 heads of 128 numbers, as many as make its width, and 8 for keys.
    """
    size, heads, kv_heads = target.head_dim, target.num_attention_heads, target.num_key_value_heads
    if target.latent is not None:
        size = min(128, target.hidden_size)
        heads = config.num_attention_heads or target.hidden_size // size
        kv_heads = math.gcd(heads, 8)
    return LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=config.intermediate_size or target.intermediate_size,
        num_hidden_layers=count,
        num_attention_heads=config.num_attention_heads or heads,
        num_key_value_heads=config.num_key_value_heads or kv_heads,
        head_dim=size,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope=target.rope.for_heads(),
    )
