"""A draft head with latent attention, small enough to compare: its config, and the tensors of its attention."""

from collections.abc import Mapping
from typing import Any

LATENT = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "q_lora_rank": 14,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 5,
    "rms_norm_eps": 1e-2,
}


def latent_shapes(entries: Mapping[str, Any], read: int) -> dict[str, tuple[int, ...]]:
    """The tensors of latent attention over `read` numbers."""
    heads, rank, query_rank = entries["num_attention_heads"], entries["kv_lora_rank"], entries["q_lora_rank"]
    plain, rotated, value = (entries[f"{name}_head_dim"] for name in ("qk_nope", "qk_rope", "v"))
    queries = heads * (plain + rotated)
    of_queries = {"q_proj.weight": (queries, read)}
    if query_rank is not None:
        of_queries = {"q_a_proj.weight": (query_rank, read), "q_a_layernorm.weight": (query_rank,)}
        of_queries["q_b_proj.weight"] = (queries, query_rank)
    return of_queries | {
        "kv_a_proj_with_mqa.weight": (rank + rotated, read),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (plain + value), rank),
        "o_proj.weight": (entries["hidden_size"], heads * value),
    }
