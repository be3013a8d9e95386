"""Checks shared by the configurations of draft heads; each raises ValueError."""

import dataclasses

from eagle_jax.configs.target import LlamaConfig


def check_taps(taps: tuple[int, ...], target_hidden_size: int) -> None:
    """Refuses taps that are empty or negative, and an empty residual stream."""
    if not taps or any(tap < 0 for tap in taps):
        raise ValueError(f"taps={taps}; expected at least one target layer, counted from 0")
    if target_hidden_size < 1:
        raise ValueError(f"target_hidden_size={target_hidden_size}; expected at least 1")


def check_mask_token(id_: int, vocab_size: int) -> None:
    """Refuses a mask token that the target does not have."""
    if not 0 <= id_ < vocab_size:
        raise ValueError(f"mask_token_id={id_}; expected one of the target's {vocab_size} tokens")


def check_width(width: int, target_width: int, what: str, instead: str) -> None:
    """Refuses a head whose width differs from the width of a matrix that it shares with its target."""
    if width != target_width:
        raise ValueError(
            f"a head of width {width} cannot read the {what} of a target of width {target_width}; it needs {instead}"
        )


def check_sizes(config: object) -> None:
    """Refuses Medusa or Hydra heads with a size below 1."""
    for name in ("hidden_size", "vocab_size", "num_heads", "num_layers"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}; expected at least 1")


def check_draft(
    layers: LlamaConfig, size: int, *, one_window: bool = True, like_llama: bool = True, latent: bool = False
) -> None:
    """Refuses a draft vocabulary that is empty or larger than the target's, and unsupported layers."""
    if not 1 <= size <= layers.vocab_size:
        raise ValueError(
            f"draft_vocab_size={size}; expected 1 to {layers.vocab_size}, the target's vocab_size: a head drafts some "
            "of the target's tokens or all"
        )
    if like_llama:
        _check_like_llama(layers, latent)
    if one_window and layers.full_attention_layers:
        raise ValueError(
            f"full_attention_layers={layers.full_attention_layers} in a draft head; its layers share one window or none"
        )


def _check_like_llama(layers: LlamaConfig, latent: bool) -> None:
    """Refuses layers unlike Llama's; `latent` allows latent attention, with its scale and interleaved rotation."""
    if layers.experts is not None:
        raise ValueError("the layers of a draft head have experts; expected dense ones, whatever the target's are")
    unlike, rope = layers.unlike_llama, layers.rope
    if latent and layers.latent is not None:
        unlike = {name: value for name, value in unlike.items() if name not in ("latent", "attention_multiplier")}
        rope = dataclasses.replace(rope, interleaved=False)
    if unlike:
        stated = ", ".join(f"{name}={value!r}" for name, value in unlike.items())
        raise ValueError(f"the layers of a draft head have {stated}; expected Llama's, whatever the target's are")
    if rope != rope.for_heads():
        raise ValueError("the layers of a draft head rotate their heads otherwise than Llama's; expected Llama's way")
