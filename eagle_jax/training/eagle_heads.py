"""Initial EAGLE heads."""

import jax
import jax.numpy as jnp

from eagle_jax.configs.heads import Eagle3Config, EagleConfig, MaskConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.sharding import to_host
from eagle_jax.training.initial_head import HeadInit, draft_layers, output_matrix, taps_of
from eagle_jax.training.settings import HeadConfig


def eagle1(start: HeadInit) -> Head:
    """Returns a random EAGLE-1 head; with a draft vocabulary, it has those rows of the target's output matrix."""
    layers = draft_layers(start.config, start.sizes, start.config.layers)
    head = Head.init(EagleConfig(layers=layers, fc_bias=start.config.bias), start.key, jnp.float32)
    return head if start.ids is None else head.trimmed(start.target, start.ids)


def eagle3(start: HeadInit) -> Head3:
    """Returns an EAGLE-3 or P-EAGLE head with the target's final norm and output matrix, and an `fc` that passes on the
    highest tap, so that it initially predicts what the target would from that layer. A P-EAGLE head has its own
    embedding, initially the target's, to train the mask token.
    """
    config, target, ids = start.config, start.target, start.ids
    layers = draft_layers(config, start.sizes, config.layers)
    head_config = _eagle3_config(config, layers, target.config, None if ids is None else len(ids), start.steps)
    params = Head3.init(head_config, start.key, jnp.float32).params
    highest = jnp.eye(layers.hidden_size, dtype=jnp.float32)
    output = output_matrix(target)
    params |= {
        "fc": {"weight": params["fc"]["weight"].at[:, -len(highest) :].add(highest)},
        "norm": jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), to_host(target.params["norm"])),
        "lm_head": {"weight": output if ids is None else output[ids]},
    }
    if head_config.own_embedding:
        params |= {"embed_tokens": {"embedding": jnp.asarray(to_host(target.table), jnp.float32)}}
    return Head3(params=params, config=head_config, vocabulary=start.vocabulary)


def _eagle3_config(
    config: HeadConfig, layers: LlamaConfig, target: LlamaConfig, drafted: int | None, steps: int = 1
) -> Eagle3Config:
    mask = None
    if config.method == "peagle":
        if target.scales_edges:
            reason = "which scales its embeddings or logits (Gemma, Granite)"
            raise ValueError(f"method peagle for a target {reason}; expected another one")
        assert config.mask_token_id is not None, "HeadConfig has refused it"
        mask = MaskConfig(token_id=config.mask_token_id, num_drafted=steps)
    return Eagle3Config(
        layers=layers,
        taps=taps_of(config, target.num_hidden_layers),
        target_hidden_size=target.hidden_size,
        draft_vocab_size=drafted or target.vocab_size,
        fc_norm=config.fc_norm,
        norm_output=config.norm_output,
        own_embedding=mask is not None,
        mask=mask,
    )


def shapes(config: HeadConfig, target: LlamaConfig) -> Head | Head3:
    """Returns the shapes of the initial EAGLE head for a target, for memory plans.

    Raises:
        ValueError: the method is another one, or the head is an earlier one, whose sizes only its files state.
    """
    if config.method not in ("eagle1", "eagle3") or config.start is not None:
        raise ValueError(f"head.method={config.method}, start={config.start}; expected a new EAGLE head to plan for")
    layers, drafted = draft_layers(config, target, config.layers), config.draft_vocab_size
    if config.method == "eagle3":
        head_config = _eagle3_config(config, layers, target, drafted)
        return jax.eval_shape(lambda: Head3.init(head_config, jax.random.key(0), jnp.float32))
    small = EagleConfig(layers=layers, fc_bias=config.bias, draft_vocab_size=drafted)
    return jax.eval_shape(lambda: Head.init(small, jax.random.key(0), jnp.float32))
