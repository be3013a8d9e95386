"""Same seed, same text: every drafter, greedy and sampled, alone and in a ragged batch. A new drafter adds a row.

Models are laid out as `load` does it, with the CPU backend and without.
"""

import dataclasses
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import padded, params_of
from latent_head import latent_head3
from states import steps_by_row

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.decoding.calibration import DEPTHS, LOG_ODDS
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree, StaticTree, likeliest_tree
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import Drafter, Plain, View
from eagle_jax.drafters.calibrated import Calibrated
from eagle_jax.drafters.dflash import DFlashDrafter
from eagle_jax.drafters.draft_model import DraftModel
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.drafters.hybrid import Hybrid
from eagle_jax.drafters.hydra import HydraDrafter
from eagle_jax.drafters.lookahead import Lookahead
from eagle_jax.drafters.medusa import MedusaDrafter
from eagle_jax.drafters.paused import Paused, Ready
from eagle_jax.drafters.peagle import PEagle
from eagle_jax.drafters.prompt_lookup import PromptLookup
from eagle_jax.drafters.rest import Datastore, Rest
from eagle_jax.drafters.shared import Shared
from eagle_jax.drafters.suffix import SuffixDecoding
from eagle_jax.drafters.token_recycling import ACCEPTANCE_BY_RANK, TokenRecycling
from eagle_jax.loop.catch_up import compiled_catch_up
from eagle_jax.loop.decode import compiled_advance
from eagle_jax.loop.prefill import compiled_prefill
from eagle_jax.loop.state import BatchParams, DecodeState
from eagle_jax.models import layout
from eagle_jax.models.lm import LM
from eagle_jax.ops import VARIABLE, PackedWeight, is_leaf
from eagle_jax.requests.processing import LogitsOptions
from eagle_jax.scheduling.backlog import Backlog
from eagle_jax.scheduling.logits_arrays import processor_of
from eagle_jax.struct import pytree
from eagle_jax.structured.regex_automaton import regex_automaton
from eagle_jax.structured.token_automaton import token_automaton
from eagle_jax.testing import (
    TINY,
    cpu_backend,
    synthetic_dflash,
    synthetic_head3,
    synthetic_hydra,
    synthetic_medusa,
    synthetic_pair,
    synthetic_peagle,
)

# As wide as the CPU backend's blocks need it.
CONFIG = dataclasses.replace(
    TINY, hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32
)
STORED, HEAD = synthetic_pair(CONFIG, strength=0.3, error=0.15)
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, TINY.vocab_size, size).tolist() for size in (70, 5, 1)]
SLOTS, CHUNK, NEW = 128, 32, 40


@pytree
class Garbage(Drafter):
    """Proposes the same worthless tree again and again: nothing may change but the speed."""

    shape = TreeShape(nodes=4, depth=2)
    taps = ()

    def init(self, target, batch, slots):
        return ()

    def observe(self, target, state, observed):
        return ()

    def propose(self, target, state, view: View, mode):
        batch = view.length.shape[0]
        tokens = jnp.concatenate([view.root[:, None], jnp.broadcast_to(jnp.arange(3)[None], (batch, 3))], axis=1)
        parent = jnp.broadcast_to(jnp.array([-1, 0, 0, 1])[None], (batch, 4))
        return Tree(tokens=tokens, parent=parent, valid=jnp.ones_like(tokens, bool)), ()


def for_decoding(model: Any) -> Any:
    """A target or a head as `load` lays it out with the present backend."""
    head_dim = model.config.head_dims if isinstance(model, LM) else model.head_dim
    params = layout.for_decoding(jax.tree.map(lambda leaf: leaf, model.params), head_dim)
    return dataclasses.replace(model, params=params)


@functools.cache
def target(backend: str) -> LM:
    assert os.environ[VARIABLE] == backend
    return for_decoding(STORED)


def calibrated(drafter: Drafter) -> Calibrated:
    """With a record that has little to do with the drafter: the text never depends on it."""
    tables = np.sort(np.random.default_rng(5).random((2, DEPTHS, len(LOG_ODDS)), np.float32), axis=2)
    return Calibrated(drafter, *map(jnp.asarray, tables))


def eagle(head: Any, policy: Any, **how: Any) -> Calibrated:
    return calibrated(Eagle(head=for_decoding(head), policy=policy, **how))


@functools.cache
def dflash_head(**flags: Any) -> Any:
    return synthetic_dflash(STORED, **flags)


def dflash(policy: Any, **flags: Any) -> Calibrated:
    return calibrated(DFlashDrafter(head=for_decoding(dflash_head(**flags)), policy=policy))


@functools.cache
def peagle_head() -> Any:
    return synthetic_peagle(STORED)


ONE_LAYER = dataclasses.replace(CONFIG, num_hidden_layers=1)
DFLASH2 = {"selector": SelectorConfig(8, 6), "convolution": ConvolutionConfig(2, 16)}
DRAFTERS = {
    "eagle1": lambda: eagle(HEAD, EAGLE1_TREE),
    "eagle2": lambda: eagle(HEAD, DynamicTree(60, 7, 10)),
    "eagle1, a chain": lambda: eagle(HEAD.trimmed(STORED, np.arange(8, 61)), DynamicTree(5, 3, 1)),
    "eagle1, a tree that ends": lambda: eagle(
        HEAD.trimmed(STORED, np.arange(8, 61)), DynamicTree(6, 4, 2, min_probability=0.05)
    ),
    "uncoupled": lambda: Eagle(head=for_decoding(HEAD), policy=DynamicTree(12, 3, 4), coupled=False),
    "eagle1 trimmed": lambda: eagle(HEAD.trimmed(STORED, np.arange(8, 61)), DynamicTree(9, 2, 3)),
    "eagle3": lambda: eagle(synthetic_head3(STORED, error=0.1), DynamicTree(12, 3, 4)),
    "eagle3 trimmed": lambda: eagle(
        synthetic_head3(STORED, error=0.1, draft_vocab_size=50, norm_output=True), StaticTree((-1, 0, 0, 0, 1, 1, 4))
    ),
    "eagle3 with latents": lambda: eagle(latent_head3(STORED, error=0.1), DynamicTree(12, 3, 4)),
    "draft model": lambda: calibrated(
        DraftModel(
            model=for_decoding(dataclasses.replace(STORED, params=jax.tree.map(lambda x: x * 1.05, STORED.params))),
            policy=DynamicTree(8, 3, 2),
        )
    ),
    "medusa": lambda: calibrated(MedusaDrafter(for_decoding(synthetic_medusa(STORED)), DynamicTree(8, 2, 3))),
    "hydra": lambda: calibrated(HydraDrafter(for_decoding(synthetic_hydra(STORED, prefix=True)), DynamicTree(8, 2, 3))),
    "dflash, a chain": lambda: dflash(DynamicTree(4, 2, 1)),
    "dflash, a tree": lambda: dflash(DynamicTree(10, 2, 4)),
    "dflash, the likeliest paths": lambda: dflash(DynamicTree(14, 2, 3, 13)),
    "dflash, causal": lambda: dflash(DynamicTree(7, 1, 3), causal_layers=(0,)),
    "dflash, a window and heads with norms": lambda: dflash(
        DynamicTree.chain(4, 0.1),
        sample_from_anchor=True,
        layers=dataclasses.replace(ONE_LAYER, sliding_window=6, qk_norm=True),
    ),
    "peagle, a chain": lambda: calibrated(PEagle(for_decoding(peagle_head()), DynamicTree(4, 2, 1))),
    "peagle, a tree": lambda: calibrated(PEagle(for_decoding(peagle_head()), DynamicTree(10, 2, 4))),
    "dspark, a chain": lambda: dflash(
        DynamicTree(5, 3, 1),
        markov=MarkovConfig(8, "gated"),
        confidence=ConfidenceConfig(True),
        **{"own_embedding": True, "draft_vocab_size": 50, "sample_from_anchor": True},
    ),
    "dspark, a tree": lambda: dflash(DynamicTree(9, 2, 4), markov=MarkovConfig(8, "rnn"), sample_from_anchor=True),
    "dflash 2, a chain": lambda: dflash(DynamicTree.chain(4, 0.1), **DFLASH2),
    "dflash 2, a tree": lambda: dflash(DynamicTree(10, 2, 4), **DFLASH2),
    "prompt lookup": lambda: PromptLookup(copied=4),
    "suffix decoding": lambda: SuffixDecoding(nodes=9, copied=4),
    "lookahead": lambda: Lookahead(window=3, ngram=3, guesses=2),
    "token recycling": lambda: TokenRecycling(policy=likeliest_tree(20, ACCEPTANCE_BY_RANK), width=8),
    "rest": lambda: Rest(Datastore.of(PROMPTS + answers(Plain(), "mixed")), shortest=1, lines=8, copied=4, nodes=9),
    "hybrid": lambda: Hybrid(
        eagle(HEAD, DynamicTree(6, 2, 2)), TokenRecycling(policy=likeliest_tree(6, ACCEPTANCE_BY_RANK))
    ),
    "garbage": Garbage,
}
# Run in every way on each run of the suite: a tree and a chain, both noises, and every kind of state.
WHOLE = ("eagle2", "eagle3", "uncoupled", "dflash 2, a tree", "hybrid", "garbage")
MOST_IN_IT = "processed, mixed"
IN_TURNS = "mixed, two rows at a time"  # any two, drafted for or not, with nodes shared or not, for one to three steps
SHARED = "processed, mixed, sharing nodes"  # which the rows' trees together have more of than are read
BUDGETS = (2, 5)  # nodes of two rows' trees together
GUESSES_NOTHING = {"garbage"}  # every other row has to save a tenth of the steps, or nothing was tested
# Temperature and top-p of each row; rows in one batch need not agree, so two programs serve all.
SAMPLED = Sampling(sampled=True, filtered=True)
HOW = {
    "alone, greedy": [(0.0, 1.0)],
    "alone, T=1 with top-p": [(1.0, 0.9)],
    "mixed": [(1.0, 0.9), (0.0, 1.0), (0.7, 1.0)],
    "processed, greedy": [(0.0, 1.0)],
    "processed, mixed": [(1.0, 0.9), (0.0, 1.0), (0.7, 1.0)],
}
HOW[IN_TURNS] = HOW[SHARED] = HOW["mixed"]
PENALTIES = LogitsOptions(repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1)
BANS = LogitsOptions(logit_bias=((3, 2.0), (9, -3.0)), min_tokens=20, frequency_penalty=0.05)
# Two digits, a letter and a sign again and again, of tokens that are a byte each; the text is complete after each sign.
FORM = token_automaton(
    regex_automaton("([0-9]{2}[A-Z_a-d][^0-9])*"), [bytes([40 + id_]) for id_ in range(TINY.vocab_size)], stop_ids=[7]
)
# What each row of a batch asks of its logits, with its bad words (one of them is common in the plain text) and the
# automaton of its structured output.
PROCESSED = [
    (PENALTIES, (), None),
    (BANS, ((5,), (14, 5), (1, 2, 3)), None),
    (LogitsOptions(regex="as in FORM", presence_penalty=0.5), (), FORM),
]


def answers(drafter: Drafter, how: str) -> list[list[int]]:
    return decoded(drafter, how)[0]


def decoded(drafter: Drafter, how: str) -> tuple[list[list[int]], int]:
    """The answers, and how many target passes they took."""
    rows, processed = HOW[how], how.startswith("processed")
    prompts = PROMPTS[: len(rows)]
    request = params_of(
        list(map(len, prompts)),
        NEW,
        temperature=[temperature for temperature, _ in rows],
        top_p=[top_p for _, top_p in rows],
        stop_ids=[-1, *([7] if processed else [])],
        processor=processor_of(PROCESSED[: len(rows)], TINY.vocab_size) if processed else None,
    )
    model = target(os.environ[VARIABLE])
    drafter = Ready(drafter, 6) if how == IN_TURNS else Shared(drafter, 8) if how == SHARED else drafter
    state = compiled_prefill()(
        model, drafter, request, padded(prompts, SLOTS + 16), mode=SAMPLED, slots=SLOTS, chunk=CHUNK, logprobs=False
    )
    if how == IN_TURNS:
        state = in_turns(model, drafter, request, state)
    else:
        state = compiled_advance()(model, drafter, request, state, jnp.int32(10**6), mode=SAMPLED)
    text, length = np.asarray(state.tokens), np.asarray(state.length)
    said = [text[row, len(prompt) : length[row] + 1].tolist() for row, prompt in enumerate(prompts)]
    return said, int(steps_by_row(state).sum())


def in_turns(model: LM, drafter: Ready, request: BatchParams, state: DecodeState) -> DecodeState:
    """The answers, with other rows, with and without drafts, and with another number of nodes every few steps."""
    rng, paused, backlog = np.random.default_rng(0), Paused(drafter.drafter, drafter.room), Backlog()
    drafting = [drafter, *(Ready(Shared(drafter.drafter, nodes), drafter.room) for nodes in BUDGETS)]
    everyone = jnp.arange(len(state.done), dtype=jnp.int32)
    while not np.asarray(state.done).all():
        rows = jnp.asarray(rng.permutation(len(state.done))[:2], jnp.int32)
        chosen = drafting[rng.integers(len(drafting))] if rng.random() < 0.6 else paused
        steps = int(rng.integers(1, 4))
        if backlog.advance(chosen, steps):
            state = compiled_catch_up()(model, drafter, state, everyone)
        until = state.steps + jnp.int32(steps)
        state = compiled_advance()(model, chosen, request, state, until, jnp.int32(2), rows, mode=SAMPLED)
    return state


@functools.cache
def plain(how: str, backend: str) -> tuple[list[list[int]], int]:
    return decoded(Plain(), how)


@pytest.fixture(params=["cpu", "xla"])
def backend(request, monkeypatch, room_for_programs) -> str:
    if request.param == "cpu" and cpu_backend() is None:
        pytest.skip("the CPU backend is not used")
    monkeypatch.setenv(VARIABLE, request.param)
    return request.param


def test_the_backend_computes_whole_blocks(backend, monkeypatch):
    if backend == "xla":
        assert not any(isinstance(leaf, PackedWeight) for leaf in jax.tree.leaves(target("xla"), is_leaf=is_leaf))
        return
    seen = []
    for name in ("attention_block", "mlp_block"):
        block = getattr(cpu_backend(), name)
        watch = lambda *args, block=block, name=name, **fixed: (block(*args, **fixed), seen.append(name))[0]  # noqa: E731
        monkeypatch.setattr(cpu_backend(), name, watch)
    jax.clear_caches()
    decoded(Plain(), "alone, greedy")
    assert seen.count("attention_block") >= CONFIG.num_hidden_layers and "mlp_block" in seen


def rows(complete: bool) -> list[Any]:
    """Drafters with the backends and shapes that each is run with: those of `WHOLE` in all ways, and the others in the
    one that has most in it. `complete`: what that leaves out.
    """
    every = [(name, backend, tuple(HOW)) for backend in ("cpu", "xla") for name in DRAFTERS]
    quick = [(*row[:2], row[2] if row[0] in WHOLE else (MOST_IN_IT,)) for row in every]
    quick = [row for row in quick if row[0] in WHOLE or row[1] == "cpu"]
    # more programs: of one backend
    quick = [
        (*row[:2], tuple(how for how in row[2] if how not in (IN_TURNS, SHARED) or row[1] == "cpu")) for row in quick
    ]
    chosen = [row for row in every if row not in quick] if complete else quick
    marks = {"cpu": (), "xla": pytest.mark.matrix}
    return [pytest.param(*row, id=f"{row[0]}, {row[1]}", marks=marks[row[1]]) for row in chosen]


@pytest.mark.parametrize("name, backend, hows", rows(complete=False), indirect=["backend"])
def test_same_seed_same_text(name, backend, hows):
    same_text(name, backend, hows)


@pytest.mark.proof
@pytest.mark.parametrize("name, backend, hows", rows(complete=True), indirect=["backend"])
def test_same_seed_same_text_in_every_way(name, backend, hows):
    same_text(name, backend, hows)


def same_text(name: str, backend: str, hows: tuple[str, ...]) -> None:
    drafter, saved = DRAFTERS[name](), 0
    for how in hows:
        text, passes = decoded(drafter, how)
        expected, without = plain(how, backend)
        assert text == expected, how
        assert all(len(answer) == NEW or answer[-1] == 7 for answer in text)
        saved += without - passes if how != IN_TURNS else 0  # there steps are counted in which a row took no part
    if name not in GUESSES_NOTHING:
        assert saved > 0.1 * sum(plain(how, backend)[1] for how in hows if how != IN_TURNS), (
            "the drafter saved no passes: nothing was tested"
        )
