"""The loop: draft a tree, verify it in one forward pass of the target, commit the drawn tokens.

`step` is the whole method, from top to bottom. Plain decoding is the same loop with a drafter that
proposes nothing; generating in one go and streaming are the same `advance` with different limits.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding import sampling
from eagle_jax.decoding.automata import Guide
from eagle_jax.decoding.processor import LogitsAdjustment, Prefix, adjustment_at
from eagle_jax.decoding.rows import append
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, depth_below
from eagle_jax.decoding.verify import Accepted, walk
from eagle_jax.drafters.base import CommittedRows, Drafter, Verification, View
from eagle_jax.loop.active import params_at, state_at, with_rows
from eagle_jax.loop.budget import within
from eagle_jax.loop.compiled import compiled
from eagle_jax.loop.flat_nodes import FlatNodes, NodeLayout, PaddedNodes
from eagle_jax.loop.greedy import greedy_draws, is_large
from eagle_jax.loop.logprobs import record_logprobs
from eagle_jax.loop.state import BatchParams, DecodeState
from eagle_jax.models.attention_inputs import num_valid
from eagle_jax.models.lm import LM
from eagle_jax.models.target import PADDING_POSITION, Output, Target
from eagle_jax.sharding import Sharding, constrain, sharded

NO_TOKEN = -1  # stands for a draw from logits that are not finite


def step(target: Target, drafter: Drafter, params: BatchParams, state: DecodeState, mode: Sampling) -> DecodeState:
    """Runs one step for every row; finished rows are computed too, but do not change."""
    params, height = params.for_mode(mode), drafter.shape.depth
    noise = noise_after(target, params, state.length, height + 1, mode)
    tree, draft = draft_tree(target, drafter, params, state, noise, mode)
    tree = tree if drafter.budget is None else within(tree, drafter.budget, state.done)
    ancestors = tree.ancestors
    layout, output, logits = verify_tree(target, drafter, state, tree, ancestors)

    with jax.named_scope("accept"):
        prefix = prefix_at_nodes(params, state, tree, ancestors, height)
        skips_logits = can_skip_logits(target, drafter, params, state, output, mode)
        draws = (
            drawn_greedily(target, layout, output)
            if skips_logits
            else draws_at_nodes(layout, output, logits, params, prefix, noise, mode)
        )
        accepted, stopped, failed = _until_stop(walk(tree, draws, height, ancestors), params, state)
        nodes, count = accepted.nodes, accepted.count

    with jax.named_scope("observe"):
        observed = CommittedRows(
            start=state.length,
            count=count,
            tokens=jnp.take_along_axis(tree.tokens, nodes, axis=1),
            following=accepted.draws,
            hidden=layout.rows_at(output.hidden, nodes),
            taps=tuple(layout.rows_at(tap, nodes) for tap in output.taps),
            checked=Verification(
                tree=tree, logits=layout.nodes_of_samples(layout.samples_of_rows(logits)), draws=draws
            ),
        )
        draft = drafter.observe(target, draft, observed)

    with jax.named_scope("commit"):
        steps = state.steps + 1
        logprobs, top = record_logprobs(
            state,
            layout.rows_at(logits, nodes),
            accepted.draws,
            state.num_tokens,
            params.top_logprobs,
            ~state.done,
            mode,
        )
        committed_at_step = jnp.full_like(accepted.draws, steps)
        following = DecodeState(
            tokens=append(state.tokens, accepted.draws, state.num_tokens),
            length=state.length + count,
            done=state.done | stopped | failed | (state.num_tokens + count >= params.limit),
            stopped=state.stopped | stopped,
            cache=state.cache.commit(layout.layer_rows_at(output.kv, nodes), count),
            draft=draft,
            automaton=automaton_after(params, state.automaton, prefix, accepted),
            steps=steps,
            committed_at_step=append(state.committed_at_step, committed_at_step, state.num_tokens),
            logprobs=logprobs,
            top=top,
        )
        return constrain(following)


def is_finite(hidden: Float[Array, "b n h"]) -> Bool[Array, "b n"]:
    """Returns whether tokens can be drawn after these nodes: hidden states that are NaN or infinite make logits NaN."""
    return jnp.all(jnp.isfinite(hidden), axis=-1)


@jax.named_scope("draft")
def draft_tree(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    state: DecodeState,
    noise: Float[Array, "b d v"] | None,
    mode: Sampling,
) -> tuple[Tree, Any]:
    """Returns the drafter's tree and its new state; `noise` is for the positions after `length`; None for greedy."""
    # penalties count the text so far; only the target adds the drafted tokens
    text = Prefix.of_text(state.tokens, state.num_tokens, jnp.asarray(params.prompt_length), state.automaton)
    automata = params.automata
    view = View(
        tokens=state.tokens,
        length=state.length,
        noise=noise,
        settings=params.settings,
        adjustment=logits_adjustment(params, text),
        guide=None if automata is None else Guide(automata, state.automaton),
    )
    tree, draft = drafter.propose(target, state.draft, view, mode)
    # an invalid node may hold any number, and one beyond the vocabulary would spoil the whole forward pass
    tokens = jnp.clip(tree.tokens, 0, target.config.vocab_size - 1)
    return dataclasses.replace(tree, tokens=jnp.where(tree.valid, tokens, 0)), draft


@jax.named_scope("verify")
def verify_tree(
    target: Target, drafter: Drafter, state: DecodeState, tree: Tree, ancestors: Bool[Array, "b n n"]
) -> tuple[NodeLayout, Output, Float[Array, "_ _ v"]]:
    """Runs the target's forward pass over the trees; returns the layout of its rows, its output, and its logits."""
    positions = jnp.where(tree.valid, state.length[:, None] + depth_below(ancestors), PADDING_POSITION)
    if drafter.budget is None:
        output = target.forward(tree.tokens, positions, ancestors, state.cache, drafter.taps)
        return PaddedNodes(), output, target.logits(output.hidden, num_valid(tree.valid))
    if not isinstance(target, LM):
        raise TypeError(f"trees that share a step's nodes need a target of the package, got {type(target).__name__}")
    layout = FlatNodes.of(tree.valid, drafter.budget)
    nodes = layout.inputs(tree.tokens, positions, ancestors)
    output = target.forward(*nodes, state.cache, drafter.taps, flat=layout.flat_rows)
    return layout, output, target.logits(output.hidden, num_valid(layout.is_node[None]))


def draws_at_nodes(
    layout: NodeLayout,
    output: Output,
    logits: Float[Array, "_ _ v"],
    params: BatchParams,
    prefix: Prefix,
    noise: Float[Array, "b d v"] | None,
    mode: Sampling,
) -> Int[Array, "b n"]:
    """Returns the token that is drawn after each node; `NO_TOKEN` where none can be."""
    depth = depth_below(prefix.ancestors)
    noise_by_node = None if noise is None else layout.noise_of_samples(noise, depth)
    adjusted = adjust_logits(layout.samples_of_rows(logits), params, prefix, layout)
    draws = sampling.draw(adjusted, noise_by_node, layout.samples_of_requests(params.settings), mode)
    return layout.nodes_of_samples(jnp.where(layout.samples_of_rows(is_finite(output.hidden)), draws, NO_TOKEN))


def can_skip_logits(
    target: Target, drafter: Drafter, params: BatchParams, state: DecodeState, output: Output, mode: Sampling
) -> bool:
    """Returns whether only greedy draws read the step's logits, and the logits are large."""
    recorded = state.logprobs is not None and mode.logprobs
    greedy = not mode.sampled and params.processor is None and not recorded
    return greedy and not drafter.reads_logits and is_large(target, output.hidden)


def drawn_greedily(target: Target, layout: NodeLayout, output: Output) -> Int[Array, "b n"]:
    """Computes `draws_at_nodes` of a greedy step if `can_skip_logits`: the compiler removes the unused logits."""
    draws = layout.samples_of_rows(greedy_draws(target, output.hidden))
    return layout.nodes_of_samples(jnp.where(layout.samples_of_rows(is_finite(output.hidden)), draws, NO_TOKEN))


def logits_adjustment(params: BatchParams, prefix: Prefix) -> LogitsAdjustment | None:
    """Returns the logits adjustments of the requests; None if no request has any."""
    if params.processor is None:
        return None
    return adjustment_at(params.processor, prefix, jnp.asarray(params.stop_ids))


def adjust_logits(
    logits: Float[Array, "_ _ v"], params: BatchParams, prefix: Prefix, layout: NodeLayout
) -> Float[Array, "_ _ v"]:
    """Applies the adjustments and automata of the requests to the logits of samples."""
    adjustment = logits_adjustment(params, prefix)
    if adjustment is None:
        return logits
    adjusted = layout.samples_of_nodes(adjustment).apply(logits)
    if params.automata is None or prefix.states is None:
        return adjusted
    return adjusted + layout.samples_of_nodes(params.automata.bans(prefix.states))


def prefix_at_nodes(
    params: BatchParams, state: DecodeState, tree: Tree, ancestors: Bool[Array, "b n n"], depth: int
) -> Prefix:
    """Returns the text up to and including each node of a tree that is at most `depth` deep."""
    states = None if params.automata is None else params.automata.at_nodes(state.automaton, tree, depth)
    return Prefix(state.tokens, state.num_tokens, jnp.asarray(params.prompt_length), tree.tokens, ancestors, states)


def automaton_after(
    params: BatchParams, before: Int[Array, "b"], prefix: Prefix, accepted: Accepted
) -> Int[Array, "b"]:
    """Returns the state of each row's automaton after the tokens that were drawn."""
    if params.automata is None or prefix.states is None:
        return before
    last = jnp.maximum(accepted.count - 1, 0)[:, None]
    states = jnp.take_along_axis(prefix.states, jnp.take_along_axis(accepted.nodes, last, axis=1), axis=1)
    following = params.automata.after(states, jnp.take_along_axis(accepted.draws, last, axis=1))
    return jnp.where(accepted.count > 0, following[:, 0], before)


@sharded
def advance(
    target: Target,
    drafter: Drafter,
    params: BatchParams,
    state: DecodeState,
    until: Int[Array, ""],
    enough: Int[Array, ""] | None = None,
    rows: Int[Array, "a"] | None = None,
    *,
    mode: Sampling,
    sharding: Sharding | None = None,
) -> DecodeState:
    """Runs steps on the device until every row is done, or `enough` of them are, or until step `until`.

    Args:
        rows: the distinct rows that take part; `enough` counts among them, and `params.processor` has these rows only.
            None is all.
    """
    full_state = state
    if rows is not None:
        params, state = params_at(params, rows), state_at(state, rows)

    def unfinished(state: DecodeState) -> Bool[Array, ""]:
        going_on = ~jnp.all(state.done) if enough is None else jnp.sum(state.done, dtype=jnp.int32) < enough
        return going_on & (state.steps < until)

    state = jax.lax.while_loop(unfinished, lambda state: step(target, drafter, params, state, mode), state)
    return state if rows is None else with_rows(full_state, state, rows)


compiled_advance = functools.partial(compiled, advance, static=("mode", "sharding"), donated="state")


def noise_after(
    target: Target, params: BatchParams, length: Int[Array, "b"], count: int, mode: Sampling
) -> Float[Array, "b d v"] | None:
    """Returns the noise of the `count` positions that follow position `length`."""
    if not mode.sampled:
        return None
    positions = length[:, None] + 1 + jnp.arange(count, dtype=jnp.int32)[None]
    vocab_size = target.config.vocab_size
    with jax.named_scope("noise"):
        return mode.where_asked(
            lambda: jnp.any(~jnp.asarray(params.settings.greedy)),
            lambda: sampling.noise(params.settings, positions, vocab_size),
            lambda: jnp.zeros((*positions.shape, vocab_size), jnp.float32),
        )


def _until_stop(
    accepted: Accepted, params: BatchParams, state: DecodeState
) -> tuple[Accepted, Bool[Array, "b"], Bool[Array, "b"]]:
    """Cuts the path after the first stop token, before a draw from logits that are NaN, and at the limit; done rows
    accept nothing. Tells which rows stopped, and which failed.
    """
    index = jnp.arange(accepted.draws.shape[1], dtype=jnp.int32)[None]
    spoiled = (accepted.draws == NO_TOKEN) & (index < accepted.count[:, None])  # the last draw of the path, if any
    failed = jnp.any(spoiled, axis=1)
    accepted = dataclasses.replace(accepted, count=accepted.count - failed.astype(jnp.int32))
    stops = is_stop(accepted.draws, params) & (index < accepted.count[:, None])
    first_stop = jnp.where(jnp.any(stops, axis=1), jax.lax.argmax(stops, 1, jnp.int32), accepted.count)
    room = params.limit - state.num_tokens
    count = jnp.where(state.done, 0, jnp.minimum(jnp.minimum(accepted.count, first_stop + 1), room))
    stopped = jnp.any(stops & (index < count[:, None]), axis=1)
    return Accepted(nodes=accepted.nodes, draws=accepted.draws, count=count), stopped, failed & ~stopped


def is_stop(tokens: Int[Array, "b r"], params: BatchParams) -> Bool[Array, "b r"]:
    return jnp.any(tokens[..., None] == params.stop_ids[:, None], axis=-1) & (tokens >= 0)
