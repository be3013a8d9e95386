"""The initial head of a run: a new one, or an earlier head."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Int

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import load_head, resolve
from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.eagle import Head
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import dense_params
from eagle_jax.training.initial_head import HeadInit
from eagle_jax.training.settings import HeadConfig


def first(
    config: HeadConfig,
    target: LM,
    ids: Int[np.ndarray, " d"] | None,
    key: jax.Array,
    *,
    steps: int = 1,
    sizes: LlamaConfig | None = None,
) -> AnyHead:
    """Returns the initial head, in float32 on one device; the arguments are those of `HeadInit`.

    Raises:
        ValueError: an earlier head has another method, or the sizes do not match.
    """
    if config.start is not None:
        return _earlier(config, config.start, target, ids)
    start = HeadInit(config, target, target.config if sizes is None else sizes, ids, key, steps)
    return HEAD_KINDS[config.method].get("begin")(start)


def _earlier(config: HeadConfig, folder: str, target: LM, ids: Int[np.ndarray, " d"] | None) -> AnyHead:
    """Loads an earlier head of the same method; one without a draft vocabulary gets `ids`."""
    head = load_head(resolve(folder), target, "float32")
    if not HEAD_KINDS[head.kind].begin:
        raise ValueError(
            f"head.start={folder} holds a target's own layer for multi-token prediction (MTP), which is not trained "
            "further; name an EAGLE head"
        )
    if head.kind != config.method:
        raise ValueError(
            f"head.start={folder} holds a head of {head.kind} and head.method is {config.method}; set head.method: "
            f"{head.kind}, or name another head"
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
