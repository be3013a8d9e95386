"""The published EAGLE cycle in PyTorch, float64, slow and plain: everything is computed from the text anew.

Written from the papers' description: no cache, no masks of trees. A path of drafted tokens is scored by running the
head over the whole sequence that it makes.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import eagle3_torch
import eagle_torch
import numpy as np
import torch
from cycle_cases import COUNT, PROMPT, TAPS, TARGET, cycle_state, target_state
from eagle_torch import State, attention, mlp, norm
from parity_cases import Case
from torch.nn.functional import linear

Path = tuple[int, ...]

STATIC = """0 1 2 3  00 01 02 10 11 20 21 30  000 001 002 010 011 020 021 100  0000 0001 0002  00000 00001""".split()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Thousands of products of 32 numbers each: shared out, a case took 39 s instead of 2 s on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
@one_thread()
def answers(case: Case) -> dict[str, np.ndarray]:
    """What follows the prompt, `root` `[]`; the trees of the cycles after it, `tokens` and `parents` `[cycles, nodes]`;
    and what each adds to the text, `accepted` `[cycles, longest]`, -1 behind.

    Also how much the closest of all decisions was decided by, `margin` `[]`; and for each flag of the case how many of
    the trees are others if it is ignored, `ignoring/FLAG` `[]`.
    """
    head = Head(case.entries["head"], _tensors(cycle_state(case)))
    text, gaps, trees, accepted = PROMPT, [], [], []
    others = dict.fromkeys(case.entries["flags"], 0)
    text += (Cycle(head, text).next_token(()),)
    for _ in range(COUNT):
        cycle = Cycle(head, text)
        tree = cycle.tree(case.entries["tree"])
        for flag in others:
            others[flag] += Cycle(ignoring(flag, head), text).tree(case.entries["tree"]) != tree
        trees.append(tree)
        accepted.append(cycle.accepted(tree))
        gaps += cycle.gaps
        text += accepted[-1]
    roots = np.cumsum([len(PROMPT), *map(len, accepted[:-1])])
    longest = max(map(len, accepted))
    return {
        "root": np.array(text[len(PROMPT)]),
        "tokens": np.array([[text[at], *(path[-1] for path in tree[1:])] for at, tree in zip(roots, trees)]),
        "parents": np.array([[-1, *(tree.index(path[:-1]) for path in tree[1:])] for tree in trees]),
        "accepted": np.array([[*new, *[-1] * (longest - len(new))] for new in accepted]),
        "margin": np.array(min(gaps)),
        **{f"ignoring/{flag}": np.array(count) for flag, count in others.items()},
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """An EAGLE-1/2 or EAGLE-3 head: its `config.json` and tensors."""

    entries: Mapping[str, Any]
    state: State

    def embed(self, tokens: Path) -> torch.Tensor:
        return self.state.get("embed_tokens.weight", _target()["embed_tokens.weight"])[list(tokens)]

    def features(self, states: list[torch.Tensor]) -> torch.Tensor:
        if TAPS not in self.entries:
            return states[-1]
        streams = torch.cat([states[tap] for tap in self.entries[TAPS]], dim=-1)
        return eagle3_torch.features(self.state, self.entries, streams)

    def outputs(self, embeddings: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        run = eagle3_torch.outputs if TAPS in self.entries else eagle_torch.guess
        return run(self.state, self.entries, embeddings, features)

    def logits(self, out: torch.Tensor) -> torch.Tensor:
        if TAPS in self.entries:
            return eagle3_torch.logits(self.state, self.entries, out)
        return linear(out, self.state.get("lm_head.weight", _target()["lm_head.weight"]))


@dataclasses.dataclass(frozen=True, eq=False)
class Cycle:
    """One cycle as the papers run it, for a text whose last token is the root; `gaps` notes what decided."""

    head: Head
    text: Path
    gaps: list[float] = dataclasses.field(default_factory=list)

    def tree(self, shape: Any) -> list[Path]:
        """The paths of drafted tokens below the root; the first, of none, is the root itself."""
        return self.static_tree() if shape == "static" else self.dynamic_tree(**shape)

    def static_tree(self) -> list[Path]:
        """EAGLE-1's: a node is a path of ranks."""
        paths: dict[str, Path] = {"": ()}
        for ranks in STATIC:
            above = paths[ranks[:-1]]
            paths[ranks] = (*above, self.children(above, 4)[int(ranks[-1])][1])
        return list(paths.values())

    def dynamic_tree(self, total: int, depth: int, top_k: int) -> list[Path]:
        """EAGLE-2's: expand the likeliest, then keep the `total - 1` likeliest of all, in the order of finding."""
        found = [(logp, (token,)) for logp, token in self.children((), top_k)]
        frontier = found
        for _ in range(depth):
            below = [
                (score + logp, (*path, token)) for score, path in frontier for logp, token in self.children(path, top_k)
            ]
            found = found + below
            frontier = [below[i] for i in self.best([score for score, _ in below], top_k)]
        kept = self.best([score for score, _ in found], total - 1, ordered=False)
        return [(), *(found[i][1] for i in sorted(kept))]

    def children(self, path: Path, count: int) -> list[tuple[float, int]]:
        """The `count` likeliest tokens after the path, best first: log-probability and target id."""
        logp = self.head.logits(self.output(path)).log_softmax(dim=-1)
        offsets = self.head.state.get("d2t", torch.zeros(len(logp), dtype=torch.int64))
        return [(float(logp[i]), i + int(offsets[i])) for i in self.best(logp.tolist(), count)]

    @functools.cache
    def output(self, path: Path) -> torch.Tensor:
        """The head's output after text and path: what the next slot reads, and what logits are read off."""
        drafted = [self.output(path[:i]) for i in range(len(path))]
        features = torch.stack([*self.true_features, *drafted])
        return self.head.outputs(self.head.embed((self.text + path)[1:]), features)[-1]

    @functools.cached_property
    def true_features(self) -> torch.Tensor:
        return self.head.features(target_states(self.text[:-1]))  # the root has not been read

    def accepted(self, tree: list[Path]) -> Path:
        """Of all paths from the root the longest run of tokens that the target would have said; then its next one."""
        runs = []
        for path in tree:
            right = [self.next_token(path[:i]) == token for i, token in enumerate(path)]
            runs.append(path[: right.index(False)] if False in right else path)
        longest = max(runs, key=len)
        return (*longest, self.next_token(longest))

    def next_token(self, path: Path) -> int:
        """The target's greedy token after text and path."""
        return self.best(linear(target_states(self.text + path)[-1][-1], _target()["lm_head.weight"]).tolist(), 1)[0]

    def best(self, scores: list[float], count: int, ordered: bool = True) -> list[int]:
        """Numbers of the largest scores, largest first."""
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        close = order[0 if ordered else count - 1 : count + 1]
        self.gaps.extend(scores[i] - scores[j] for i, j in zip(close, close[1:]))
        return order[:count]


def ignoring(flag: str, head: Head) -> Head:
    """The head as one would run it who does not know the flag."""
    entries, state = dict(head.entries), dict(head.state)
    endings = {"bias": "fc.bias", "qkv_bias": "_proj.bias", "qk_norm": ("q_norm.weight", "k_norm.weight")}
    endings |= {"own_embedding": "embed_tokens.weight", "draft_vocab_size": "d2t"}
    if flag in endings:
        state = {name: value for name, value in state.items() if not name.endswith(endings[flag])}
    elif flag == "rope_theta":
        entries[flag] = TARGET.entries[flag]
    elif flag == "taps":  # counted from the layer that a stream leaves
        entries[TAPS] = [tap + 1 for tap in entries[TAPS]]
    elif flag == "whole_vocabulary":  # the first part of it alone
        state["lm_head.weight"] = state["lm_head.weight"][:36]
    elif flag == "target_hidden_size":  # of each tap as many numbers as the head is wide
        fc = state["fc.weight"].unflatten(1, (3, -1)).clone()
        fc[:, :, entries["hidden_size"] :] = 0
        state["fc.weight"] = fc.flatten(1)
    elif flag == "head_dim":  # the hidden size shared out, hence as many heads as the matrices then have rows for
        own, size = entries[flag], entries["hidden_size"] // entries["num_attention_heads"]
        entries[flag] = size
        for heads in ("num_attention_heads", "num_key_value_heads"):
            entries[heads] = entries[heads] * own // size
    elif flag == "num_hidden_layers":  # the first alone
        silent = ("layers.1.self_attn.o_proj.weight", "layers.1.mlp.down_proj.weight")
        state |= {name: torch.zeros_like(state[name]) for name in silent}
    else:
        del entries[flag]
    return Head(entries, state)


@functools.cache
def target_states(tokens: Path) -> list[torch.Tensor]:
    """What enters each of the target's layers, what leaves the last, and that after the final norm."""
    target, config = _target(), TARGET.entries
    states = [target["embed_tokens.weight"][list(tokens)]]
    for i in range(config["num_hidden_layers"]):
        part = {name.removeprefix(f"layers.{i}."): v for name, v in target.items() if name.startswith(f"layers.{i}.")}
        x = states[-1] + attention(part, config, norm(states[-1], part["input_layernorm.weight"], config))
        states.append(x + mlp(part, norm(x, part["post_attention_layernorm.weight"], config)))
    return [*states, norm(states[-1], target["norm.weight"], config)]


@functools.cache
def _target() -> State:
    return _tensors(target_state())


def _tensors(state: Mapping[str, np.ndarray]) -> State:
    tensors = {name: torch.from_numpy(value) for name, value in state.items()}
    return {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}
