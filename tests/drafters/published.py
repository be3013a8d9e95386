"""The published EAGLE cycle in numpy, float64, slow and plain: everything is computed from the text anew.

Written from the papers' description: no cache, no masks, no tree code shared with the library. A path of drafted tokens
is scored by running the head over the whole sequence that it makes.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from eagle_jax.config import LlamaConfig
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM

Path = tuple[int, ...]

STATIC = """0 1 2 3  00 01 02 10 11 20 21 30  000 001 002 010 011 020 021 100  0000 0001 0002  00000 00001""".split()


def norm(x: np.ndarray, scale: Any, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * np.asarray(scale, np.float64)


def linear(x: np.ndarray, part: Any) -> np.ndarray:
    out = x @ np.asarray(part["weight"], np.float64).T
    return out + np.asarray(part["bias"], np.float64) if "bias" in part else out


def attention(x: np.ndarray, part: Any, c: LlamaConfig) -> np.ndarray:
    n, mixed = len(x), []
    q, k, v = (linear(x, part[f"{name}_proj"]).reshape(n, -1, c.head_dim) for name in "qkv")
    half = c.head_dim // 2
    turn = np.arange(n)[:, None] * c.rope.theta ** (-np.arange(half) / half)

    def rotate(y: np.ndarray) -> np.ndarray:
        a, b = y[:, :half], y[:, half:]
        return np.concatenate([a * np.cos(turn) - b * np.sin(turn), b * np.cos(turn) + a * np.sin(turn)], axis=-1)

    for head in range(c.num_attention_heads):
        shared = head * c.num_key_value_heads // c.num_attention_heads
        scores = rotate(q[:, head]) @ rotate(k[:, shared]).T / np.sqrt(c.head_dim)
        weights = np.exp(scores - scores.max(-1, keepdims=True)) * np.tril(np.ones((n, n)))
        mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, shared])
    return linear(np.concatenate(mixed, axis=-1), part["o_proj"])


def after_attention(x: np.ndarray, part: Any, c: LlamaConfig) -> np.ndarray:
    y = norm(x, part["post_attention_layernorm"]["scale"], c.rms_norm_eps)
    gate = linear(y, part["mlp"]["gate_proj"])
    return x + linear(gate / (1 + np.exp(-gate)) * linear(y, part["mlp"]["up_proj"]), part["mlp"]["down_proj"])


@dataclasses.dataclass(frozen=True, eq=False)
class Published:
    """A target and a head as the papers run them, for one committed text whose last token is the root."""

    target: LM
    head: DraftHead
    text: Path

    def embed(self, tokens: Path) -> np.ndarray:
        return np.asarray(self.target.params["embed_tokens"]["embedding"], np.float64)[list(tokens)]

    @functools.cache
    def target_states(self, tokens: Path) -> list[np.ndarray]:
        """What enters each layer, what leaves the last, and that after the final norm."""
        c, params = self.target.config, self.target.params
        states = [self.embed(tokens)]
        for i in range(c.num_hidden_layers):
            part, x = params[f"layers_{i}"], states[-1]
            entering = norm(x, part["input_layernorm"]["scale"], c.rms_norm_eps)
            states.append(after_attention(x + attention(entering, part["self_attn"], c), part, c))
        return [*states, norm(states[-1], params["norm"]["scale"], c.rms_norm_eps)]

    def next_token(self, path: Path) -> int:
        """The target's greedy token after text and path."""
        return int(linear(self.target_states(self.text + path)[-1][-1], self.target.params["lm_head"]).argmax())

    @functools.cached_property
    def true_features(self) -> np.ndarray:
        states = self.target_states(self.text[:-1])  # the root has not been read
        if not isinstance(self.head, Head3):
            return states[-1]
        c, params, taps = self.head.config, self.head.params, [states[tap] for tap in self.head.taps]
        if c.fc_norm:
            taps = [norm(tap, params[f"fc_norm_{i}"]["scale"], c.layers.rms_norm_eps) for i, tap in enumerate(taps)]
        read = np.concatenate(taps, axis=-1)
        if c.norm_before_fc:
            read = norm(read, params["input_norm"]["scale"], c.layers.rms_norm_eps)
        return linear(read, params["fc"])

    @functools.cache
    def output(self, path: Path) -> np.ndarray:
        """The head's output after text and path: what the next slot reads, and what logits are read off."""
        drafted = [self.output(path[:i]) for i in range(len(path))]
        features = np.stack([*self.true_features, *drafted])
        embeddings = self.embed((self.text + path)[1:])
        c, params = self.head.config.layers, self.head.params
        part = params["layers_0"]
        if not isinstance(self.head, Head3):
            x = linear(np.concatenate([embeddings, features], axis=-1), params["fc"])
            return after_attention(x + attention(x, part["self_attn"], c), part, c)[-1]
        both = [
            norm(embeddings, part["input_layernorm"]["scale"], c.rms_norm_eps),
            norm(features, part["hidden_norm"]["scale"], c.rms_norm_eps),
        ]
        mixed = attention(np.concatenate(both, axis=-1), part["self_attn"], c)
        residual = both[1] if self.head.config.norm_before_residual else features
        out = after_attention(residual + mixed, part, c)[-1]
        return self.final_norm(out) if self.head.config.norm_output else out

    def final_norm(self, out: np.ndarray) -> np.ndarray:
        return norm(out, self.head.params["norm"]["scale"], self.head.config.layers.rms_norm_eps)

    def children(self, path: Path, count: int) -> list[tuple[float, int]]:
        """The `count` likeliest tokens after the path, best first: log-probability and target id."""
        out, own = self.output(path), self.head.params.get("lm_head")
        if isinstance(self.head, Head3) and not self.head.config.norm_output:
            out = self.final_norm(out)
        logits = linear(out, self.target.params["lm_head"] if own is None else own)
        kept = np.arange(len(logits)) if self.head.vocabulary is None else np.asarray(self.head.vocabulary)
        logp = logits - np.logaddexp.reduce(logits)
        return [(float(logp[i]), int(kept[i])) for i in np.argsort(-logp, kind="stable")[:count]]

    def static_tree(self) -> list[Path]:
        """EAGLE-1's: a node is a path of ranks; node 0 is the root."""
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
            frontier = sorted(below, key=lambda node: -node[0])[:top_k]
        best = sorted(range(len(found)), key=lambda i: (-found[i][0], i))[: total - 1]
        return [(), *(found[i][1] for i in sorted(best))]

    def accepted(self, tree: list[Path]) -> Path:
        """Of all paths from the root the longest run of tokens that the target would have said; then its next one."""
        runs = []
        for path in tree:
            right = [self.next_token(path[:i]) == token for i, token in enumerate(path)]
            runs.append(path[: right.index(False)] if False in right else path)
        longest = max(runs, key=len)
        return (*longest, self.next_token(longest))
