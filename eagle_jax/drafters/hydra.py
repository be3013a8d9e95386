"""Hydra drafting (Ankner et al. 2024, arXiv:2402.05109): Medusa's heads, which also read drafted tokens on the path.

Head k reads the concatenation of the target's final hidden state before the root and the embeddings of the root and of
the k drafted tokens on the path. Hydra++ has a decoder layer over the hidden states of the text, whose output replaces
the hidden state; its cache has committed text alone.

Cost of one step: a frontier of rows through one head per level, each with an output matrix; with Hydra++ also one pass
of its layer over the accepted rows.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle_jax.decoding.policy import TreePolicy, check_width
from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.scores import Scores
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters import guided, ranking
from eagle_jax.drafters.base import CommittedRows, Drafter, View
from eagle_jax.models.cache import Cache
from eagle_jax.models.heads import Hydra
from eagle_jax.models.lm import causal
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree, static


@pytree
class HydraState:
    """The heads' state after the committed text.

    Attributes:
        cache: K/V of Hydra++'s layer; empty without one.
        text: the heads' input at the last token before the root.
    """

    cache: Cache
    text: Float[Array, "b h"]


@pytree
class HydraDrafter(Drafter):
    """Drafts with Hydra heads over the tree that `policy` grows.

    Attributes:
        head: the heads.
        policy: which nodes to expand and which to keep; at most as deep as the number of heads.
        coupled: at temperature > 0, rank guesses with the noise that the target will draw with.
    """

    head: Hydra
    policy: TreePolicy = static()
    coupled: bool = static(default=True)

    taps = ()

    def __post_init__(self):
        ranking.check_depth(self.policy.depth, self.head.num_drafted, "Hydra")
        check_width(self.policy, self.head.config.vocab_size)

    @property
    def shape(self) -> TreePolicy:
        return self.policy

    def init(self, target: Target, batch: int, slots: int) -> HydraState:
        text = jnp.zeros((batch, self.head.config.hidden_size), target.activations)
        return HydraState(cache=self.head.empty_cache(batch, slots, target.activations), text=text)

    def observe(self, target: Target, state: HydraState, observed: CommittedRows) -> HydraState:
        steps, chain = causal(*observed.following.shape)
        with jax.named_scope("draft_observe"):
            read, kv = self.head.read(observed.hidden, observed.start[:, None] + steps, chain, state.cache)
        return HydraState(
            cache=state.cache.write(kv, observed.start, state.cache.length + observed.count),
            text=observed.last(read, state.text),
        )

    def propose(self, target: Target, state: HydraState, view: View, mode: Sampling) -> tuple[Tree, HydraState]:
        def scores(read: Float[Array, "b f w"], depth: int) -> Scores:
            return ranking.scores(self.head.logits(depth, read), depth, view, mode, self.coupled)

        def extend(
            above: Float[Array, "b _ _"], level: int, tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
        ) -> tuple[Scores, Float[Array, "b f _"]]:
            read = jnp.take_along_axis(above, parent_row[:, :, None], axis=1)
            read = jnp.concatenate([read, target.embed(tokens)], axis=-1)
            return scores(read, level), read

        with jax.named_scope("draft_tree"):
            root = jnp.concatenate([state.text[:, None], target.embed(view.root[:, None])], axis=-1)
            tree = guided.grow(self.policy, view, scores(root, 0)[:, 0], extend, root)
        return tree, state
