"""The sizes of a model in a GGUF file that a test writes."""

import gguf

from eagle_jax.config import LlamaConfig


def add_sizes(writer: gguf.GGUFWriter, config: LlamaConfig) -> None:
    """Adds what every architecture states of its model."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
