"""P-EAGLE drafting (arXiv:2602.01469): an EAGLE-3 head that guesses all tokens in one pass.

The head takes in the text as EAGLE-3's does, and its output at the last row guesses the first token. Where EAGLE-3 goes
on from its own output, mask rows stand for what is not known, and one pass over them guesses the tokens after. They
see no token that was drafted before them, so all nodes of one depth get the same candidates, as with DFlash: the tree
grows from marginals. Published is a chain of each row's best token.

Cost of one step: one head pass over the accepted rows and one over the mask rows, with the output matrix, however deep
the tree is.
"""

import jax

from eagle_jax.decoding.sampling import Sampling
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters import marginals
from eagle_jax.drafters.base import View
from eagle_jax.drafters.eagle import EagleDrafter, EagleState
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree


@pytree
class PEagle(EagleDrafter):
    """Drafts with a P-EAGLE head. The mask rows' keys and values are dropped: the state is EAGLE's.

    `policy` is no deeper than what one pass drafts; a tree that is less deep has fewer mask rows.
    """

    head: Head3

    def __post_init__(self):
        super().__post_init__()
        max_depth = self.head.num_drafted
        if max_depth is None:
            raise ValueError("an EAGLE-3 head without mask rows for P-EAGLE; draft with Eagle, step by step")
        if self.policy.depth > max_depth:
            raise ValueError(
                f"a tree of depth {self.policy.depth} for a P-EAGLE head that drafts {max_depth} tokens in a pass; "
                "choose a tree no deeper than that"
            )

    def propose(self, target: Target, state: EagleState, view: View, mode: Sampling) -> tuple[Tree, EagleState]:
        with jax.named_scope("draft_masks"):
            logits = self.head.draft(target, state.guess, view.length, state.cache, self.policy.depth)
        return marginals.grow(self.head, self.policy, view, logits, mode, self.coupled), state
