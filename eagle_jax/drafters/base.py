"""The interface of drafters: one can make decoding faster, never different."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from eagle_jax.decoding.automata import Guide
from eagle_jax.decoding.calibration import Calibration
from eagle_jax.decoding.policy import NO_TREE
from eagle_jax.decoding.processor import LogitsAdjustment
from eagle_jax.decoding.sampling import Sampling, Settings
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static


@pytree
class View:
    """The inputs of `Drafter.propose`.

    Attributes:
        tokens: prompt and answer so far, by absolute position; everything up to `length` (the root) is known.
        length: committed tokens per row, hence the root's position.
        noise: row i is the noise of the token at depth i + 1 of the tree; None when every request is greedy.
        settings: how each request draws its tokens.
        adjustment: adjusts the target's logits after the root; None if no request asks for it.
        guide: which tokens each answer's automaton allows; None together with `adjustment`.
        calibration: how likely guesses are to be accepted; None where nothing is known.
    """

    tokens: Int[Array, "b t"]
    length: Int[Array, "b"]
    noise: Float[Array, "b d v"] | None
    settings: Settings
    adjustment: LogitsAdjustment | None = None
    guide: Guide | None = None
    calibration: Calibration | None = None

    @property
    def root(self) -> Int[Array, "b"]:
        """The last drawn token, which the target has not read yet."""
        return jnp.take_along_axis(self.tokens, self.length[:, None], axis=1)[:, 0]

    def noise_at(self, depth: int) -> Float[Array, "b 1 v"] | None:
        """Returns the noise of the tokens below nodes at `depth`."""
        return None if self.noise is None else self.noise[:, depth : depth + 1]


@pytree
class Verification:
    """The target's outputs for a whole tree, rejected nodes included.

    Attributes:
        tree: the tree that was proposed.
        logits: the target's logits at every node.
        draws: the token that the target drew after every node.
    """

    tree: Tree
    logits: Float[Array, "b n v"]
    draws: Int[Array, "b n"]


@pytree
class CommittedRows:
    """Rows of true text with what the target made of them, in order (r rows).

    Attributes:
        start: position of the first row.
        count: how many of the rows are true; the rest is padding.
        tokens: the rows' own tokens.
        following: the token that follows each row.
        hidden: the target's final hidden state at each row (EAGLE-1/2's feature).
        taps: the residual streams that the drafter asked for.
        checked: the tree that these rows are the accepted path of; None for rows of a prompt, and of several steps of
            plain decoding.
        is_prefill_chunk: further rows of the text follow before the drafter proposes, so what only `propose` needs
            can wait.
    """

    start: Int[Array, "b"]
    count: Int[Array, "b"]
    tokens: Int[Array, "b r"]
    following: Int[Array, "b r"]
    hidden: Float[Array, "b r h"]
    taps: tuple[Float[Array, "b r h"], ...]
    checked: Verification | None = None
    is_prefill_chunk: bool = static(default=False)

    def split_last(self) -> "tuple[CommittedRows, CommittedRows]":
        """Returns all true rows but the last one, as a chunk before it, and that one."""
        before = jnp.maximum(self.count - 1, 0)

        def row_at(rows: Shaped[Array, "b r ..."]) -> Shaped[Array, "b 1 ..."]:
            return jax.vmap(lambda line, at: jax.lax.dynamic_slice_in_dim(line, at, 1))(rows, before)

        rows = self.tokens, self.following, self.hidden, self.taps
        chunk = CommittedRows(self.start, before, *rows, is_prefill_chunk=True)
        return chunk, CommittedRows(self.start + before, self.count - before, *jax.tree.map(row_at, rows))

    def last(self, rows: Float[Array, "b r h"], before: Float[Array, "b h"]) -> Float[Array, "b h"]:
        """Returns the value at the last true row; `before` where there is none."""
        last = jnp.take_along_axis(rows, jnp.maximum(self.count - 1, 0)[:, None, None], axis=1)[:, 0]
        return jnp.where((self.count > 0)[:, None], last, before)


class Drafter(abc.ABC):
    """Guesses a tree of continuations. Implementations are frozen pytrees: weights are leaves, all else is static.

    The loop calls `init` once, `observe` for every stretch of text that became true (prompt chunks, each step's
    accepted path, what was committed while nothing was drafted) and `propose` once a step. All three are pure. The text
    does not depend on what `propose` returns: the target draws at every node, and only drawn tokens are committed.
    """

    @property
    @abc.abstractmethod
    def shape(self) -> TreeShape:
        """Room that its trees take."""

    @property
    def budget(self) -> int | None:
        """Nodes of all requests' trees together that the target reads in a step; None: every tree whole."""
        return None

    @property
    def reads_logits(self) -> bool:
        """Whether `observe` reads the target's logits at all nodes (`Verification.logits`)."""
        return False

    @property
    @abc.abstractmethod
    def taps(self) -> tuple[int, ...]:
        """Target layers whose entering residual stream it reads."""

    @abc.abstractmethod
    def init(self, target: Target, batch: int, slots: int) -> Any:
        """Returns the state before any text: `batch` rows, room for `slots` tokens each."""

    @abc.abstractmethod
    def observe(self, target: Target, state: Any, observed: CommittedRows) -> Any:
        """Takes in true text. Rows with `count` 0 keep their state."""

    @abc.abstractmethod
    def propose(self, target: Target, state: Any, view: View, mode: Sampling) -> tuple[Tree, Any]:
        """Guesses what follows the root: a tree of `shape.nodes` nodes, none deeper than `shape.depth`."""


@dataclasses.dataclass(frozen=True)
class Wrapper(Drafter):
    """Base class of drafters that wrap another drafter.

    Attributes:
        drafter: the other one.
    """

    drafter: Drafter

    @property
    def shape(self) -> TreeShape:
        return self.drafter.shape

    @property
    def budget(self) -> int | None:
        return self.drafter.budget

    @property
    def reads_logits(self) -> bool:
        return self.drafter.reads_logits

    @property
    def taps(self) -> tuple[int, ...]:
        return self.drafter.taps

    def init(self, target: Target, batch: int, slots: int) -> Any:
        return self.drafter.init(target, batch, slots)

    def observe(self, target: Target, state: Any, observed: CommittedRows) -> Any:
        return self.drafter.observe(target, state, observed)

    def propose(self, target: Target, state: Any, view: View, mode: Sampling) -> tuple[Tree, Any]:
        return self.drafter.propose(target, state, view, mode)


class StatelessDrafter(Drafter):
    """A drafter that remembers nothing: what it needs is in the text."""

    taps = ()

    def init(self, target: Target, batch: int, slots: int) -> tuple[()]:
        return ()

    def observe(self, target: Target, state: tuple[()], observed: CommittedRows) -> tuple[()]:
        return ()


@pytree
class Plain(StatelessDrafter):
    """Proposes nothing: the loop decodes one token per target pass."""

    shape = NO_TREE

    def propose(self, target: Target, state: tuple[()], view: View, mode: Sampling) -> tuple[Tree, tuple[()]]:
        return Tree.root_only(view.root), ()
