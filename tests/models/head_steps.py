"""Draft heads as the loop runs them, step by step, for comparisons with PyTorch's writings."""

import jax
import jax.numpy as jnp
import numpy as np
from parity_cases import PROMPTS, ROWS, STEPS

from eagle_jax.models.draft_head import DraftHead


def drafted(head: DraftHead, embeddings: jax.Array, features: jax.Array) -> jax.Array:
    """Outputs `[rows, steps, h]`, each read by the next: true slots go to the cache, drafted ones stay beside it."""
    lengths, row, longest = jnp.array(PROMPTS, jnp.int32), np.arange(ROWS), max(PROMPTS)
    positions = jnp.broadcast_to(jnp.arange(longest, dtype=jnp.int32)[None], (ROWS, longest))
    chain = jnp.broadcast_to(jnp.tril(jnp.ones((longest, longest), bool))[None], (ROWS, longest, longest))
    empty = head.empty_cache(ROWS, longest)
    out, kv = head.forward(embeddings[:, :longest], features[:, :longest], positions, chain, empty)
    cache = empty.commit(kv, lengths)

    outputs, beside = [out[row, lengths - 1][:, None]], ()
    for step in range(STEPS - 1):
        at = lengths[:, None] + step
        before = lengths[:, None] + jnp.arange(step, dtype=jnp.int32)[None] if beside else None
        visible = jnp.ones((ROWS, 1, step + 1), bool)
        embedding = embeddings[row, at[:, 0]][:, None]
        out, own = head.forward(embedding, outputs[-1], at, visible, cache, beside, before)
        outputs.append(out)
        beside = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=2), beside, own) if beside else own
    return jnp.concatenate(outputs, axis=1)
