"""How fast is this project beside the original PyTorch EAGLE: same weights, prompts and tree, batch 1, greedy?

The pair (one that is named, or a synthetic one of a published shape with an EAGLE-3 head) is written in the formats
that the original reads, and the original runs from a checkout in a process of its own. An EAGLE-1 head has to draft all
tokens, which the shipped one does not: the original knows no draft vocabulary for it. Both take turns prompt by prompt.
Texts may part where two logits are nearly the same; those that agree are counted.
"""

import argparse
from collections.abc import Mapping

from common import begin
from peer import Compared, Worker, arguments, compared, folder_for, write_target
from turns import Timed, in_turns, ours, ratios

from eagle_jax.converters import save_head
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3

NEEDS = """The checkout is one of https://github.com/SafeAILab/EAGLE. Its code needs PyTorch, transformers 4.53 (5 and
newer lack what it imports) and safetensors; give a Python that has them as --python, or install them into a folder with
`pip install --no-deps --target FOLDER transformers==4.53.1 'tokenizers<0.22' 'huggingface_hub<1'` and give it as
--packages. It decodes with the published dynamic trees and one request at a time."""

THEIR_PLAIN, THEIRS, PLAIN, OURS = "EAGLE's own plain", "original EAGLE", "eagle_jax plain", "eagle_jax EAGLE"


def main() -> None:
    known = arguments(__doc__.splitlines()[0], NEEDS)
    known.add_argument("--tree", default="60,7,10", help="nodes, depth, top-k (default: %(default)s)")
    options = known.parse_args()
    try:
        timed = measured(compared(options), options)
    except (RuntimeError, ValueError, FileNotFoundError) as error:
        raise SystemExit(str(error)) from error
    print(ratios(timed, {"against its plain": THEIR_PLAIN, "against ours, plain": PLAIN, "against it": THEIRS}))
    print(f"\n{same(timed, options.new_tokens)} of {len(timed[OURS].texts)} texts are the same")


def same(timed: Mapping[str, Timed], new_tokens: int) -> int:
    """How many texts agree; the original says a few tokens more than it is asked for."""
    pairs = zip(timed[OURS].texts, timed[THEIRS].texts, strict=True)
    return sum(ours == theirs[:new_tokens] for ours, theirs in pairs)


def measured(both: Compared, options: argparse.Namespace) -> Mapping[str, Timed]:
    """Theirs and ours, in turns.

    Raises:
        RuntimeError: the original did not run.
        ValueError: it would not do with the head what the head was trained for.
    """
    check_head(both)
    tree = tuple(int(part) for part in options.tree.split(","))
    new = options.new_tokens
    with folder_for(options) as folder:
        write_target(both.target, folder / "target")
        save_head(both.head, folder / "head", format="safeailab", target=both.target)
        kind = "eagle3" if isinstance(both.head, Head3) else "eagle1"
        worker = Worker(options, "eagle_original.py", folder / "target", folder / "head", options.dtype, kind, *tree)
        try:
            methods = {
                THEIR_PLAIN: worker.method("plain", new),
                THEIRS: worker.method("eagle", new),
                PLAIN: ours(both.model, new, "none"),
                OURS: ours(both.model, new, "eagle", tree),
            }
            return in_turns(methods, both.asked, options.repeats)
        finally:
            worker.close()


def check_head(both: Compared) -> None:
    """Refuses an EAGLE-1 head with a draft vocabulary, which the original does not know, and an EAGLE-3 head that does
    not read what the original gives to all of them: layers 2, n / 2 and n - 3, in order.
    """
    if isinstance(both.head, Head) and both.head.vocabulary is not None:
        raise ValueError(
            f"the head drafts {both.head.draft_vocab_size} tokens, and the original knows no draft vocabulary for "
            "EAGLE-1 heads; give --head one that drafts all tokens, or --shape"
        )
    layers = both.target.config.num_hidden_layers
    theirs = tuple(sorted({2, layers // 2, layers - 3}))
    if isinstance(both.head, Head3) and both.head.taps != theirs:
        raise ValueError(
            f"the head reads the layers {both.head.taps} of {layers}, and the original would give it {theirs}; take "
            "one that reads those, or an EAGLE-1 head"
        )


if __name__ == "__main__":
    begin(main)
