"""Writes the `config.json` of an EAGLE head, in each format."""

import dataclasses
from typing import Any

from eagle_jax.configs.heads import Eagle3Config, EagleConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters.families import latent_attention, lookup
from eagle_jax.converters.heads.eagle_formats import FLAGS, check_expressible
from eagle_jax.converters.heads.entries import HEAD_TYPE, LAYER_CONFIG, PEAGLE, TAPS
from eagle_jax.converters.hf import rope

# The version of speculators that has these keys, and the number of draft tokens that its configs suggest.
SPECULATORS_VERSION = "0.5.0"
SPECULATIVE_TOKENS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verifier:
    """The target as a speculators config names it; vLLM loads this target for the head.

    Attributes:
        name: folder or hub name, or None.
        architectures: model classes, from the target's config.
        max_position_embeddings: the target's context; vLLM requires the head's to be at least as long.
    """

    name: str | None = None
    architectures: tuple[str, ...] = ()
    max_position_embeddings: int = 1

    def entries(self, method: str, tokens: int) -> dict[str, Any]:
        """Returns the config entries that name the method and the target; `tokens` is the number of draft tokens."""
        proposal = {"proposal_type": "greedy", "speculative_tokens": tokens}
        return {
            HEAD_TYPE: method,
            "speculators_version": SPECULATORS_VERSION,
            "speculators_config": {
                "algorithm": method,
                "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
                "default_proposal_method": "greedy",
                "verifier": {"name_or_path": self.name, "architectures": list(self.architectures)},
            },
        }


def entries_for(
    format: str, config: EagleConfig | Eagle3Config, dtype: str, verifier: Verifier = Verifier()
) -> dict[str, Any]:
    """Returns the `config.json` of a head; `entries.read_entries` reads it back.

    Raises:
        ValueError: readers of the format would misread the head.
    """
    check_expressible(format, config)
    if format == "speculators":
        return _nested(config, dtype, verifier)
    return _flat(config, dtype, sglang=format == "sglang")


def _flat(config: EagleConfig | Eagle3Config, dtype: str, sglang: bool) -> dict[str, Any]:
    entries = _layer(config.layers) | {"architectures": ["LlamaForCausalLM"], "torch_dtype": dtype}
    if isinstance(config, EagleConfig):
        if sglang:
            entries |= _sglang_eagle1(config)
        else:
            entries |= {"bias": config.fc_bias, "qkv_bias": config.layers.qkv_bias}
        if config.draft_vocab_size is not None:
            entries["draft_vocab_size"] = config.draft_vocab_size
        return entries
    if sglang:
        entries["architectures"] = [
            "LlamaForCausalLMEagle3" if config.layers.latent is None else latent_attention.EAGLE3
        ]
    entries["draft_vocab_size"] = config.draft_vocab_size
    if config.target_hidden_size != config.layers.hidden_size:
        entries["target_hidden_size"] = config.target_hidden_size
    entries |= {flag: True for flag in FLAGS if getattr(config, flag)}
    entries["eagle_config"] = {TAPS: [tap - 1 for tap in config.taps]}
    return entries


def _sglang_eagle1(config: EagleConfig) -> dict[str, Any]:
    """Returns entries that SGLang reads correctly: it takes `bias: true` for biases of q, k and v, as Qwen2's."""
    family = ("qwen2", "Qwen2ForCausalLMEagle") if config.layers.qkv_bias else ("llama", "LlamaForCausalLMEagle")
    entries: dict[str, Any] = {"model_type": family[0], "architectures": [family[1]]}
    return entries if config.fc_bias else entries | {"bias": False}


def _nested(config: EagleConfig | Eagle3Config, dtype: str, verifier: Verifier) -> dict[str, Any]:
    layers = config.layers
    # Only "dynamic" scaling depends on the length, which must then be the head's.
    context = max(layers.max_position_embeddings, verifier.max_position_embeddings)
    if layers.rope.kind != "dynamic":
        layers = dataclasses.replace(layers, max_position_embeddings=context)
    mask = config.mask if isinstance(config, Eagle3Config) else None
    method = "eagle" if isinstance(config, EagleConfig) else "eagle3" if mask is None else PEAGLE
    tokens = SPECULATIVE_TOKENS if mask is None else mask.num_drafted
    entries: dict[str, Any] = {
        **verifier.entries(method, tokens),
        LAYER_CONFIG: _layer(layers)
        | {"attention_bias": layers.attention_bias or layers.qkv_bias, "mlp_bias": layers.mlp_bias},
        "torch_dtype": dtype,
    }
    if isinstance(config, EagleConfig):
        return entries | {
            "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
            "transformer_layer_architecture": "LlamaDecoderLayer",
            "fusion_bias": config.fc_bias,
            "layernorms": False,
        }
    entries |= {flag: getattr(config, flag) for flag in FLAGS}
    if mask is not None:
        entries |= {"mask_token_id": mask.token_id}
    differs = config.target_hidden_size != config.layers.hidden_size
    return entries | {
        "architectures": ["Eagle3Speculator" if mask is None else "PEagleSpeculator"],
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size if differs else None,
        TAPS: list(config.taps),
    }


def _layer(config: LlamaConfig) -> dict[str, Any]:
    """Returns the entries that describe the decoder layers, under HuggingFace's keys."""
    family = "deepseek_v3" if config.latent is not None else "qwen3" if config.qk_norm else "llama"
    entries: dict[str, Any] = {"model_type": family, "hidden_act": "silu"}
    entries |= {name: getattr(config, name) for name in (*lookup.SIZES, "num_key_value_heads", "head_dim")}
    entries |= {name: getattr(config, name) for name in ("max_position_embeddings", "rms_norm_eps")}
    entries |= rope.rope_to_hf(config.rope, config.max_position_embeddings) | latent_attention.write(config)
    if config.sliding_window is not None:
        entries |= {"sliding_window": config.sliding_window, "use_sliding_window": True}
        entries["layer_types"] = [lookup.WINDOWED] * config.num_hidden_layers
    return entries | {"tie_word_embeddings": False}
