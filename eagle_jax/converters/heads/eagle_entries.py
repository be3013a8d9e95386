"""The `config.json` of a draft head, in each of the formats."""

import dataclasses
from typing import Any

from eagle_jax.configs.heads import Eagle3Config, EagleConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters.families import latent_attention, lookup
from eagle_jax.converters.heads.eagle_formats import FLAGS, check_expressible
from eagle_jax.converters.heads.entries import HEAD_TYPE, LAYER_CONFIG, PEAGLE, TAPS
from eagle_jax.converters.hf import rope

# speculators' own version that has these keys, and the drafted tokens that its configs suggest.
SPECULATORS_VERSION = "0.5.0"
SPECULATIVE_TOKENS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verifier:
    """The target as a speculators config names it; vLLM serves the pair by it.

    Attributes:
        name: folder or hub name, or None.
        architectures: its classes, as its own config has them.
        max_position_embeddings: its context; vLLM wants the head's to be no shorter.
    """

    name: str | None = None
    architectures: tuple[str, ...] = ()
    max_position_embeddings: int = 1

    def entries(self, method: str, tokens: int) -> dict[str, Any]:
        """Returns a speculators config's entries on itself and the target, for a method that drafts `tokens` tokens."""
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
        ValueError: the format's readers would take it for another head.
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
    """Returns SGLang's keys for biases: a true `bias` means q, k and v, as in Qwen2."""
    family = ("qwen2", "Qwen2ForCausalLMEagle") if config.layers.qkv_bias else ("llama", "LlamaForCausalLMEagle")
    entries: dict[str, Any] = {"model_type": family[0], "architectures": [family[1]]}
    return entries if config.fc_bias else entries | {"bias": False}


def _nested(config: EagleConfig | Eagle3Config, dtype: str, verifier: Verifier) -> dict[str, Any]:
    layers = config.layers
    # Nothing but "dynamic" scaling looks at the length, and there it has to stay.
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
    wider = config.target_hidden_size != config.layers.hidden_size
    return entries | {
        "architectures": ["Eagle3Speculator" if mask is None else "PEagleSpeculator"],
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size if wider else None,
        TAPS: list(config.taps),
    }


def _layer(config: LlamaConfig) -> dict[str, Any]:
    """Returns the decoder layers in HuggingFace's keys."""
    family = "deepseek_v3" if config.latent is not None else "qwen3" if config.qk_norm else "llama"
    entries: dict[str, Any] = {"model_type": family, "hidden_act": "silu"}
    entries |= {name: getattr(config, name) for name in (*lookup.SIZES, "num_key_value_heads", "head_dim")}
    entries |= {name: getattr(config, name) for name in ("max_position_embeddings", "rms_norm_eps")}
    entries |= rope.rope_to_hf(config.rope, config.max_position_embeddings) | latent_attention.write(config)
    if config.sliding_window is not None:
        entries |= {"sliding_window": config.sliding_window, "use_sliding_window": True}
        entries["layer_types"] = [lookup.WINDOWED] * config.num_hidden_layers
    return entries | {"tie_word_embeddings": False}
