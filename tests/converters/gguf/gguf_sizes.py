"""The sizes of a model in a GGUF file that a test writes."""

import gguf

from eagle_jax.configs.target import LlamaConfig


def add_sizes(writer: gguf.GGUFWriter, config: LlamaConfig, apart_from: frozenset[str] = frozenset()) -> None:
    """Adds what every architecture states of its model, but for entries that a test states itself."""
    counts = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
    }
    for name, value in counts.items():
        if name not in apart_from:
            writer.add_uint32(f"{writer.arch}.{name}", value)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if "rope.freq_base" not in apart_from:
        writer.add_rope_freq_base(config.rope.theta)
