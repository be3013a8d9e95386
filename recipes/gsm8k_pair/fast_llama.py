"""The training pass of a dense Llama for a CPU: bfloat16 products forwards and backwards, everything else in float32.

`eagle_jax.models` computes the same function (a test holds the two together). What is different
here is only where time goes: XLA:CPU multiplies bfloat16 twice as fast as float32, but not when the left side of the
product is read transposed, as in the gradient of a weight. So that gradient transposes first.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.config import LlamaConfig

Params = dict[str, Any]

BLOCK = 128  # query rows per attention block; smaller wastes fewer products above the diagonal but compiles longer


@jax.custom_vjp
def matmul(x: Float[Array, "m i"], kernel: Float[Array, "i o"]) -> Float[Array, "m o"]:
    """`x @ kernel` with bfloat16 operands, accumulated in float32; the same in both products of the gradient."""
    return _product(x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16))


def _forward(x: Float[Array, "m i"], kernel: Float[Array, "i o"]):
    x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    return _product(x, kernel), (x, kernel)


def _backward(saved, gradient: Float[Array, "m o"]):
    x, kernel = saved
    gradient = gradient.astype(jnp.bfloat16)
    for_x = jax.lax.dot_general(gradient, kernel, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return for_x, _product(jax.lax.optimization_barrier(x.T), gradient)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


matmul.defvjp(_forward, _backward)


def rms_norm(x: Float[Array, "m h"], scale: Float[Array, "h"], eps: float) -> Float[Array, "m h"]:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * scale[None]


def rotate(x: Float[Array, "b heads n c"], theta: float) -> Float[Array, "b heads n c"]:
    """Rotary positions counted from 0, pairs (x_i, x_{i + c/2})."""
    n, size = x.shape[2:]
    turn = jnp.arange(n, dtype=jnp.float32)[:, None] * theta ** -(
        jnp.arange(0, size, 2, dtype=jnp.float32)[None] / size
    )
    cos, sin = jnp.cos(turn)[None, None], jnp.sin(turn)[None, None]
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(layer: Params, x: Float[Array, "m h"], batch: int, config: LlamaConfig) -> Float[Array, "m h"]:
    """Causal grouped-query attention; the three input projections are one product."""
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    weights = [layer[name]["weight"] for name in ("q_proj", "k_proj", "v_proj")]
    qkv = matmul(x, jnp.concatenate(weights).T).reshape(batch, -1, heads + 2 * kv_heads, size).swapaxes(1, 2)
    q, k, v = jnp.split(qkv, [heads, heads + kv_heads], axis=1)
    q, k = rotate(q, config.rope.theta) * size**-0.5, rotate(k, config.rope.theta)
    n = q.shape[2]
    mixed = [
        _block(q[:, :, start : start + BLOCK], k[:, :, : start + BLOCK], v[:, :, : start + BLOCK])
        for start in range(0, n, BLOCK)
    ]
    return matmul(jnp.concatenate(mixed, axis=2).swapaxes(1, 2).reshape(batch * n, -1), layer["o_proj"]["weight"].T)


def _block(
    q: Float[Array, "b h n c"], k: Float[Array, "b k m c"], v: Float[Array, "b k m c"]
) -> Float[Array, "b h n c"]:
    """The last `n` of `m` positions attend to all before them: later keys are not even multiplied."""
    (batch, heads, n, size), (kv_heads, m) = q.shape, k.shape[1:3]
    later = jnp.arange(m)[None] > jnp.arange(m - n, m)[:, None]
    bias = jnp.tile(jnp.where(later, -1e30, 0.0), (heads // kv_heads, 1))[None, None]
    scores = jnp.einsum("bkrc,bkmc->bkrm", q.reshape(batch, kv_heads, -1, size), k) + bias
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    mixed = jnp.einsum("bkrm,bkmc->bkrc", weights, v) / jnp.sum(weights, axis=-1, keepdims=True)
    return mixed.reshape(batch, heads, n, size)


def mlp(layer: Params, x: Float[Array, "m h"]) -> Float[Array, "m h"]:
    """SwiGLU; gate and up are one product."""
    both = matmul(x, jnp.concatenate([layer["gate_proj"]["weight"], layer["up_proj"]["weight"]]).T)
    gate, up = jnp.split(both, 2, axis=1)
    return matmul(jax.nn.silu(gate) * up, layer["down_proj"]["weight"].T)


def hidden_states(params: Params, tokens: Int[Array, "b n"], config: LlamaConfig) -> Float[Array, "b n h"]:
    """Final normed hidden states of whole sequences."""
    batch, n = tokens.shape
    x = jnp.take(params["embed_tokens"]["embedding"], tokens, axis=0).reshape(batch * n, -1)
    for i in range(config.num_hidden_layers):
        layer = params[f"layers_{i}"]
        x = x + attention(
            layer["self_attn"], rms_norm(x, layer["input_layernorm"]["scale"], config.rms_norm_eps), batch, config
        )
        x = x + mlp(layer["mlp"], rms_norm(x, layer["post_attention_layernorm"]["scale"], config.rms_norm_eps))
    return rms_norm(x, params["norm"]["scale"], config.rms_norm_eps).reshape(batch, n, -1)


def next_token_losses(params: Params, tokens: Int[Array, "b n"], config: LlamaConfig) -> Float[Array, "b m"]:
    """Cross-entropy of each token given those before it, in nats, `m = n - 1`; embeddings are tied."""
    hidden = hidden_states(params, tokens, config)
    batch, n, size = hidden.shape
    logits = matmul(hidden.reshape(batch * n, size), params["embed_tokens"]["embedding"].T).reshape(batch, n, -1)[
        :, :-1
    ]
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen
