"""Token Recycling (Luo et al. 2024, arXiv:2408.08696): candidates after a token are those of its last occurrence.

A table has for each token the `width` likeliest next tokens that the target computed at its last occurrence, in any
context, rejected branches included. The tree reads the table level by level. Nothing is trained; the prompt adds the
pairs that it contains.

Cost of one step: a few gathers, and a top-k over the vocabulary at every node of the checked tree. The table holds
vocabulary x width numbers twice, for every row of a batch.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.decoding.policy import StaticTree, check_width
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree, TreeShape
from eagle_jax.drafters.base import CommittedRows, Drafter, Verification, View
from eagle_jax.models.target import Target
from eagle_jax.sharding import by_row
from eagle_jax.struct import pytree, static

# Approximate acceptance rate of each rank: the default trees are the likeliest nodes under it.
ACCEPTANCE_BY_RANK = (0.5, 0.15, 0.09, 0.06, 0.04, 0.03, 0.02, 0.02)
# Score of a pair from the prompt, higher than any log-probability.
PROMPT_SCORE = 0.0


@pytree
class Table:
    """Candidates after every token of the vocabulary (w of them).

    Attributes:
        tokens: the candidates; -1 for none.
        scores: their log-probabilities when they were written.
    """

    tokens: Int[Array, "b v w"]
    scores: Float[Array, "b v w"]

    def write(
        self,
        keys: Int[Array, "b r"],
        tokens: Int[Array, "b r w"],
        scores: Float[Array, "b r w"],
        is_written: Bool[Array, "b r"],
    ) -> "Table":
        """Writes new candidates after `keys`; of rows with the same key the last one in `is_written` is kept."""
        later = jnp.triu(jnp.ones((keys.shape[1],) * 2, bool), 1)[None]
        again = jnp.any((keys[:, :, None] == keys[:, None, :]) & is_written[:, None, :] & later, axis=2)
        at = jnp.where(is_written & ~again, keys, self.tokens.shape[1])  # out of range: dropped

        def put(table: Array, at: Array, rows: Array) -> Array:
            return table.at[at].set(rows, mode="drop")

        return Table(tokens=jax.vmap(put)(self.tokens, at, tokens), scores=jax.vmap(put)(self.scores, at, scores))


@pytree
class TokenRecycling(Drafter):
    """Drafts candidates of the table in a tree of fixed shape: the i-th child of a node is its i-th candidate.

    Attributes:
        policy: the tree; no node has more children than the table is wide.
        width: candidates per token.
        coupled: at temperature > 0, order candidates with the noise that the target will draw with.
    """

    policy: StaticTree = static()
    width: int = static(default=8)
    coupled: bool = static(default=True)

    taps = ()

    def __post_init__(self):
        max_children = max((self.policy.parents.count(node) for node in range(self.policy.nodes)), default=0)
        if max_children > self.width:
            raise ValueError(
                f"a tree in which a node has {max_children} children, for a table of {self.width} candidates a token; "
                "choose a narrower tree or a wider table"
            )

    @property
    def reads_logits(self) -> bool:
        return True

    @property
    def shape(self) -> TreeShape:
        return self.policy

    def init(self, target: Target, batch: int, slots: int) -> Table:
        check_width(self.policy, target.config.vocab_size)
        size = batch, target.config.vocab_size, min(self.width, target.config.vocab_size)
        return Table(tokens=jnp.full(size, -1, jnp.int32), scores=jnp.full(size, -jnp.inf, jnp.float32))

    def observe(self, target: Target, state: Table, observed: CommittedRows) -> Table:
        with jax.named_scope("recycle"):
            if observed.checked is None:
                return self._learn_from_text(state, observed)
            active = observed.count > 0
            return self._learn_from_tree(state, observed.checked, active)

    def _learn_from_text(self, table: Table, observed: CommittedRows) -> Table:
        """Adds the pairs of a text: the token after each token is put before its earlier candidates."""
        rows = observed.following.shape[1]
        keys, following = jnp.maximum(observed.tokens, 0), observed.following
        is_written = jnp.arange(rows, dtype=jnp.int32)[None] < observed.count[:, None]
        stored, scores = _after(table, keys)
        is_same = stored == following[:, :, None]
        scores = jnp.where(is_same, -jnp.inf, scores)  # removes the duplicate
        tokens = jnp.concatenate([following[:, :, None], stored[:, :, :-1]], axis=2)
        scores = jnp.concatenate([jnp.full_like(scores[:, :, :1], PROMPT_SCORE), scores[:, :, :-1]], axis=2)
        return table.write(keys, tokens, scores, is_written)

    def _learn_from_tree(self, table: Table, checked: Verification, active: Bool[Array, "b"]) -> Table:
        """Writes the target's best tokens at every node of a tree."""
        scores, tokens = Scores(checked.logits).best(table.tokens.shape[2])
        return table.write(checked.tree.tokens, tokens, scores, checked.tree.valid & active[:, None])

    def propose(self, target: Target, state: Table, view: View, mode: Sampling) -> tuple[Tree, Table]:
        def candidates(tokens, depth, parent_row, count, carry):
            successors, scores = _after(state, tokens)
            scores = self._coupled(successors, scores, view, depth)
            order = by_row(lambda x: jnp.argsort(-x, axis=-1, stable=True))(scores)
            return jnp.take_along_axis(scores, order, axis=2), jnp.take_along_axis(successors, order, axis=2), carry

        with jax.named_scope("draft_tree"):
            tree = self.policy.fill(view.root, candidates, None)
        return tree, state

    def _coupled(
        self, tokens: Int[Array, "b f w"], scores: Float[Array, "b f w"], view: View, depth: int
    ) -> Float[Array, "b f w"]:
        """In sampled rows returns scores / T + noise: the target draws the argmax of logits / T + the same noise."""
        noise = view.noise_at(depth)
        if noise is None or not self.coupled:
            return scores
        noise_of_tokens = jnp.take_along_axis(noise, jnp.maximum(tokens, 0).reshape(len(tokens), 1, -1), axis=2)
        temperature = jnp.maximum(view.settings.temperature, jnp.finfo(jnp.float32).tiny)[:, None, None]
        greedy = view.settings.greedy[:, None, None]
        return jnp.where(greedy, scores, scores / temperature + noise_of_tokens.reshape(tokens.shape))


def _after(table: Table, keys: Int[Array, "b r"]) -> tuple[Int[Array, "b r w"], Float[Array, "b r w"]]:
    return (
        jnp.take_along_axis(table.tokens, keys[:, :, None], axis=1),
        jnp.take_along_axis(table.scores, keys[:, :, None], axis=1),
    )
