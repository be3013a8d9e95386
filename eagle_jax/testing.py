"""Tiny models for tests, of this library and of code that uses it."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, EagleConfig, HydraConfig, MaskConfig, MedusaConfig
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.dflash import BlockOutput, DFlash
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.heads import Hydra, Medusa
from eagle_jax.models.lm import LM, causal

TINY = LlamaConfig(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope=Rope(theta=10000.0),
)


def synthetic_pair(
    config: LlamaConfig = TINY, *, seed: int = 0, strength: float = 0.2, error: float = 0.2
) -> tuple[LM, Head]:
    """Returns a random target, and a head whose guesses are right for part of the time.

    The target's layers add little to the residual stream (`strength`), so its next token depends mostly on the last
    one. The head passes the embedding through and adds noise of relative size `error`: 0 guesses as well as the
    embedding allows, 1 badly.
    """
    target_key, head_key, noise_key = jax.random.split(jax.random.key(seed), 3)
    target = LM.init(config, target_key)
    params = dict(jax.tree.map(lambda x: x * 8.0 * strength if x.ndim == 2 else x, target.params))
    params["embed_tokens"] = {"embedding": target.params["embed_tokens"]["embedding"] * 50.0}
    if not config.tie_word_embeddings:
        params["lm_head"] = {"weight": target.params["lm_head"]["weight"] * 50.0}
    target = LM(params=params, config=config)

    head = Head.init(EagleConfig(layers=_one_layer(config), fc_bias=True), head_key)
    size = config.hidden_size
    through = jnp.concatenate([jnp.eye(size), jnp.zeros((size, size))], axis=1)
    noise = error / size**0.5 * jax.random.normal(noise_key, through.shape)
    head_params = dict(head.params)
    head_params["fc"] = {"weight": through + noise, "bias": head.params["fc"]["bias"]}
    return target, dataclasses.replace(head, params=head_params)


def synthetic_head3(target: LM, *, seed: int = 0, error: float = 0.2, **flags: Any) -> Head3:
    """Returns an EAGLE-3 head whose guesses for a target of `synthetic_pair` are right for part of the time.

    Its attention looks mostly at the slot itself and passes the embedding through, with noise of relative size `error`.

    Args:
        flags: fields of `Eagle3Config` that are not its defaults; the taps are all that the target has.
    """
    c = target.config
    taps = (0, c.num_hidden_layers // 2, c.num_hidden_layers)
    settings: dict[str, Any] = {"target_hidden_size": c.hidden_size, "draft_vocab_size": c.vocab_size, "taps": taps}
    layers = dataclasses.replace(_one_layer(c), num_key_value_heads=c.num_attention_heads)
    head = Head3.init(Eagle3Config(layers=layers, **{**settings, **flags}), jax.random.key(seed))

    size, keys = c.hidden_size, iter(jax.random.split(jax.random.key(seed + 1), 4))
    embedding = jnp.concatenate([jnp.eye(size), jnp.zeros((size, size))], axis=1)

    def noisy(through: jax.Array) -> dict[str, jax.Array]:
        return {"weight": through + error / size**0.5 * jax.random.normal(next(keys), through.shape)}

    attention = {"q_proj": {"weight": 3.0 * embedding}, "k_proj": noisy(embedding)}
    attention |= {"v_proj": noisy(embedding), "o_proj": noisy(jnp.eye(size))}
    params = head.params | {"layers_0": head.params["layers_0"] | {"self_attn": attention}}
    params["fc"] = {"weight": head.params["fc"]["weight"] * error}
    params["lm_head"] = {"weight": head.drafted_part(target.params["lm_head"]["weight"].T).T}
    return dataclasses.replace(head, params=params)


def synthetic_medusa(target: LM, *, num_heads: int = 3, seed: int = 0) -> Medusa:
    """Returns Medusa heads whose guesses for a target of `synthetic_pair` are right for part of the time.

    The target's answer to each token alone gives the two tokens that follow it; an output matrix is the
    least-squares map from the hidden state of a token to the one that head k has to guess.
    """
    c = target.config
    config = MedusaConfig(hidden_size=c.hidden_size, vocab_size=c.vocab_size, num_heads=num_heads, num_layers=1)
    params = Medusa.init(config, jax.random.key(seed)).params
    hidden, logits = target(jnp.arange(c.vocab_size, dtype=jnp.int32)[:, None])
    after = jnp.argmax(logits[:, 0], axis=-1)
    ahead = after[after]
    for head in params.values():
        target_logits = 10.0 * jax.nn.one_hot(ahead, c.vocab_size)
        head["lm_head"] = {"weight": (jnp.linalg.pinv(hidden[:, 0]) @ target_logits).T}
        ahead = after[ahead]
    return Medusa(params=params, config=config)


def synthetic_hydra(
    target: LM, *, num_heads: int = 3, prefix: bool = False, seed: int = 0, error: float = 0.2
) -> Hydra:
    """Returns Hydra heads whose guesses for a target of `synthetic_pair` are right for part of the time.

    The first block passes on the embedding of the last token that it reads, with noise of relative size `error` on all
    that it reads; the output matrix is the target's.
    """
    c = target.config
    sizes = {"hidden_size": c.hidden_size, "vocab_size": c.vocab_size, "num_heads": num_heads, "num_layers": 1}
    config = HydraConfig(**sizes, prefix=_one_layer(c) if prefix else None)
    params, size = Hydra.init(config, jax.random.key(seed)).params, c.hidden_size
    for level, key in enumerate(jax.random.split(jax.random.key(seed + 1), num_heads)):
        through = jnp.concatenate([jnp.zeros((size, (level + 1) * size)), jnp.eye(size)], axis=1)
        head = params[f"heads_{level}"]
        noise = error / size**0.5 * jax.random.normal(key, through.shape)
        head["layers_0"]["res_connection"]["weight"] = through + noise
        head["lm_head"]["weight"] = target.params["lm_head"]["weight"]
    return Hydra(params=params, config=config)


def synthetic_dflash(target: LM, *, block_size: int = 4, steps: int = 400, seed: int = 0, **flags: Any) -> DFlash:
    """Returns a DFlash head of one layer that learnt on the spot what a target of `synthetic_pair` says after random
    texts.

    Args:
        steps: updates (Adam on the cross-entropy of every slot, given the true token before it, too, where the head
            reads that), each with 64 of 2048 texts. A confidence head learns nothing.
        flags: fields of `DFlashConfig` that are not its defaults; the taps are all that the target has.
    """
    c = target.config
    taps = (0, c.num_hidden_layers // 2, c.num_hidden_layers)
    sizes: dict[str, Any] = {"taps": taps, "target_hidden_size": c.hidden_size, "layers": _one_layer(c)}
    sizes |= {"block_size": block_size, "mask_token_id": c.vocab_size - 1}
    head = DFlash.init(DFlashConfig(**{**sizes, **flags}), jax.random.key(seed))
    head = dataclasses.replace(head, params=jax.tree.map(lambda x: x * 3.0 if x.ndim == 2 else x, head.params))

    def block_loss(head: DFlash, tokens: Array, streams: tuple[Array, ...], start: Array, text: Array) -> Array:
        cache, positions = head.empty_cache(len(tokens), tokens.shape[1]), causal(*tokens.shape)[0]
        cache = cache.write(head.context(streams, positions, cache), jnp.zeros_like(start), start)
        root = jnp.take_along_axis(tokens, start[:, None], axis=1)[:, 0]
        return _block_loss(head, head.draft(target, root, start, cache, head.num_drafted), text)

    return _trained(head, target, head.num_drafted, block_loss, steps=steps, seed=seed)


def synthetic_peagle(target: LM, *, num_drafted: int = 3, steps: int = 500, seed: int = 0, **flags: Any) -> Head3:
    """Returns a P-EAGLE head of two layers that learnt as `synthetic_dflash` does, with an embedding of its own.

    Args:
        num_drafted: tokens that one pass drafts.
        flags: fields of `Eagle3Config` that are not its defaults; the taps are all that the target has.
    """
    c = target.config
    sizes: dict[str, Any] = {"taps": (0, c.num_hidden_layers // 2, c.num_hidden_layers), "own_embedding": True}
    sizes |= {"target_hidden_size": c.hidden_size, "draft_vocab_size": c.vocab_size}
    sizes |= {"layers": dataclasses.replace(_one_layer(c), num_hidden_layers=2)}
    sizes |= {"mask": MaskConfig(token_id=c.vocab_size - 1, num_drafted=num_drafted)}
    head = Head3.init(Eagle3Config(**{**sizes, **flags}), jax.random.key(seed))
    params = jax.tree.map(lambda x: x * 3.0 if x.ndim == 2 else x, head.params)
    params["embed_tokens"] = {"embedding": target.table}
    params["lm_head"] = {"weight": head.drafted_part(target.params["lm_head"]["weight"].T).T}
    head = dataclasses.replace(head, params=params)

    def block_loss(head: Head3, tokens: Array, streams: tuple[Array, ...], start: Array, text: Array) -> Array:
        cache, following = head.empty_cache(len(tokens), tokens.shape[1]), jnp.roll(tokens, -1, axis=1)
        slots = head.embed(target, following), head.features(streams[0], streams), *causal(*tokens.shape)
        out, kv = head.forward(*slots, cache)
        last = jnp.take_along_axis(out, jnp.maximum(start - 1, 0)[:, None, None], axis=1)[:, 0]
        logits = head.draft(target, last, start, cache.write(kv, jnp.zeros_like(start), start), num_drafted)
        return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()

    return _trained(head, target, num_drafted, block_loss, steps=steps, seed=seed)


def _trained(
    head: AnyHead,
    target: LM,
    num_drafted: int,
    block_loss: Callable[[Any, Array, tuple[Array, ...], Array, Array], Array],
    *,
    steps: int,
    seed: int,
) -> Any:
    """Returns the head after `steps` updates (Adam), each with 64 of 2048 texts of 1 to 16 tokens.

    Args:
        block_loss: `block_loss(head, tokens[b n], streams, start[b], text[b p])`, the loss of the drafts after the
            roots at `start`; `text` is the root and the true tokens after it.
    """
    texts, longest = 2048, 16
    text_key, length_key, order_key = jax.random.split(jax.random.key(seed + 1), 3)
    length = jax.random.randint(length_key, (texts,), 0, longest)  # the root's position
    tokens = jax.random.randint(text_key, (texts, longest + num_drafted), 0, target.config.vocab_size)
    rows = jnp.arange(texts)
    for ahead in range(num_drafted):
        hidden = target.causal(tokens).hidden[rows, length + ahead]
        tokens = tokens.at[rows, length + ahead + 1].set(jnp.argmax(target.logits(hidden[:, None])[:, 0], axis=-1))
    streams = target.causal(tokens[:, :longest], head.taps).taps

    def loss(params: Any, chosen: Int[Array, "n"]) -> Float[Array, ""]:
        now, start = dataclasses.replace(head, params=params), length[chosen]
        text = start[:, None] + jnp.arange(num_drafted + 1, dtype=jnp.int32)[None]
        streams_of = tuple(stream[chosen] for stream in streams)
        return block_loss(now, tokens[chosen, :longest], streams_of, start, tokens[chosen[:, None], text])

    rule = optax.adam(optax.cosine_decay_schedule(1e-2, steps))

    @jax.jit
    def train(params: Any) -> Any:
        def update(state: Any, key: jax.Array) -> Any:
            gradient = jax.grad(loss)(state[0], jax.random.choice(key, texts, (64,), replace=False))
            change, rest = rule.update(gradient, state[1])
            return (optax.apply_updates(state[0], change), rest), None

        return jax.lax.scan(update, (params, rule.init(params)), jax.random.split(order_key, steps))[0][0]

    with jax.numpy_dtype_promotion("standard"):  # optax mixes whole numbers and floats
        return dataclasses.replace(head, params=train(head.params))


def _block_loss(head: DFlash, slots: BlockOutput, text: Int[Array, "b _"]) -> Float[Array, ""]:
    """Computes the cross-entropy of the tokens after the root, by the slots alone and given each true token."""
    entropy = optax.softmax_cross_entropy_with_integer_labels
    loss = entropy(slots.logits, text[:, 1:]).mean()
    if head.config.markov is None and head.config.selector is None:
        return loss
    state = head.path_state((len(text), 1), slots.out.dtype)
    for k in range(head.num_drafted):
        slot = BlockOutput(*(part[:, k : k + 1] for part in slots))
        true, candidates = text[:, k + 1 : k + 2], None
        if head.config.selector is not None:  # the true token is one of them, if need be in the last one's place
            candidates = head.candidates(slot.logits)
            candidates = candidates.at[..., -1].set(
                jnp.where(jnp.any(candidates == true[..., None], axis=-1), candidates[..., -1], true)
            )
            true = jnp.argmax(candidates == true[..., None], axis=-1)
        logits, state = head.edge_logits(slot, text[:, k : k + 1], state, candidates)
        loss += entropy(logits, true).mean()
    return loss


def _one_layer(config: LlamaConfig) -> LlamaConfig:
    """Returns a config of one dense layer of the target's sizes, with its window, if any."""
    changes = config.of_llama() | {"rope": config.rope.for_heads(), "experts": None, "full_attention_layers": ()}
    return dataclasses.replace(config, num_hidden_layers=1, **changes)


def cpu_backend() -> Any:
    """Returns the module of the CPU backend; None if it is missing or cannot be used."""
    try:
        backend = importlib.import_module("eagle_jax.ops.cpu.backend")
    except ImportError:
        return None
    return backend if backend.refusal() is None else None
