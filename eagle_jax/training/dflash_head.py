"""Initial DFlash, DSpark and DFlash 2 heads."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from eagle_jax.configs import heads
from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.models.dflash import DFlash
from eagle_jax.training.initial_head import HeadInit, draft_layers, output_matrix, taps_of
from eagle_jax.training.settings import HeadConfig

BLOCK_SIZES = {"dflash": 16, "dspark": 7, "dflash2": 8}


def begin(start: HeadInit) -> DFlash:
    """Returns a random head, as published, with the target's embedding and (rows of its) output matrix. A selector
    initially ranks tokens by the block's own logits.
    """
    config, target, ids = start.config, start.target, start.ids
    layers = draft_layers(config, start.sizes, config.layers)
    if target.config.scales_edges:
        reason = "which scales its embeddings or logits (Gemma, Granite)"
        raise ValueError(f"method {config.method} for a target {reason}; expected another one")
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
        **_edge_configs(config, target.config.vocab_size if ids is None else len(ids)),
    )
    params = DFlash.init(head_config, start.key, jnp.float32).params
    if head_config.selector is not None:
        selector = params["candidate_selector"]
        blank = jnp.zeros_like(selector["successor_codebook"])
        params |= {"candidate_selector": selector | {"successor_codebook": blank}}
    if ids is not None:
        params |= {"lm_head": {"weight": output_matrix(target)[ids]}}
    return DFlash(params=params, config=head_config, vocabulary=start.vocabulary)


def dflash_taps(config: HeadConfig, layers: int) -> tuple[int, ...]:
    """Returns the target layers that a DFlash head reads: the configured ones, or as published five evenly spaced ones
    from the second to the third last.
    """
    if config.taps is None and layers >= 8:
        return heads.dflash_taps(layers)
    return taps_of(config, layers)


def _window(config: HeadConfig) -> int | None:
    return 2048 if config.method == "dflash2" and config.window is None else config.window


def _edge_configs(config: HeadConfig, drafted: int) -> dict[str, Any]:
    """Returns the config fields that DSpark and DFlash 2 add to those of DFlash."""
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
