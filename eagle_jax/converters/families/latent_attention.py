"""Multi-head latent attention in a `config.json`, and back."""

import math
from collections.abc import Mapping
from typing import Any

from eagle_jax.configs.target import Latent, LlamaConfig, Rope
from eagle_jax.converters.families.family import Entries
from eagle_jax.converters.hf import rope as hf_rope
from eagle_jax.converters.hf.values import integer, is_number, optional_integer

EAGLE3 = "Eagle3DeepseekV2ForCausalLM"  # the class of EAGLE-3 heads with latent attention
KEYS = frozenset(
    {"kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "rope_interleave"}
)
_WHOLE, _PART = "mscale_all_dim", "mscale"


def read(entries: Entries) -> dict[str, Any]:
    """Reads sizes, and the scale of scores: that of whole heads, times the square of YaRN's factor."""
    plain, rotated = integer(entries, "qk_nope_head_dim"), integer(entries, "qk_rope_head_dim")
    latent = Latent(
        rank=integer(entries, "kv_lora_rank"),
        query_rank=optional_integer(entries, "q_lora_rank"),
        plain_dim=plain,
        value_dim=integer(entries, "v_head_dim"),
    )
    if rotated < 1:
        raise ValueError(f"qk_rope_head_dim={rotated}; expected at least 1")
    scale = (plain + rotated) ** -0.5 * _factor(entries) ** 2
    heads = integer(entries, "num_attention_heads")  # keys and values have no number of their own
    return {"latent": latent, "head_dim": rotated, "attention_multiplier": scale, "num_key_value_heads": heads}


def write(config: LlamaConfig) -> dict[str, Any]:
    """Returns the entries that `read` reads."""
    latent = config.latent
    if latent is None:
        return {}
    entries: dict[str, Any] = {
        "kv_lora_rank": latent.rank,
        "q_lora_rank": latent.query_rank,
        "qk_rope_head_dim": config.head_dim,
        "qk_nope_head_dim": latent.plain_dim,
        "v_head_dim": latent.value_dim,
        "rope_interleave": config.rope.interleaved,
    }
    factor = math.sqrt(config.attention_scale * (latent.plain_dim + config.head_dim) ** 0.5)
    if config.rope.kind == "yarn" and config.rope.factor > 1:
        scaling = hf_rope.rope_to_hf(config.rope, config.max_position_embeddings)["rope_scaling"]
        entries["rope_scaling"] = scaling | _multiples(factor, config.rope)
    return entries


def _multiples(factor: float, rope: Rope) -> dict[str, float]:
    """Returns the settings that make such a factor; `mscale` is for readers that do not know `attention_factor`."""
    step = 0.1 * math.log(rope.factor)
    all_dims, other = (round((one - 1) / step, 9) for one in (factor, factor * rope.attention_factor))
    return {_WHOLE: all_dims, **({_PART: other} if other else {})} if all_dims else {}


def _factor(entries: Entries) -> float:
    """Returns the factor by which YaRN scales queries and keys each, besides cos and sin."""
    settings = entries.get("rope_scaling") or entries.get("rope_parameters") or {}
    if not isinstance(settings, Mapping) or settings.get("rope_type", settings.get("type", "default")) == "default":
        return 1.0
    values: list[Any] = [settings.get(key) for key in (_WHOLE, "factor")]
    multiple, stretch = (value if is_number(value) else 0.0 for value in values)
    return 1.0 if stretch <= 1 else 0.1 * multiple * math.log(stretch) + 1.0
