"""How often are drafted paths accepted, against what was predicted?

    python -m benchmarks.decode.calibration --target smollm2-135m-instruct --questions QUESTIONS.jsonl

Decodes answers, greedily and at temperature 1, and sorts all nodes of all trees by depth and by the predicted
probability that they are accepted, a tenth at a time: as the head says, as it is calibrated (`calibration.json` in the
head's folder, and each request's own guesses), and, to show what the bound can see, as a head would say whose log-odds
are doubled. The error of a bucket is the difference between the mean prediction and the share that was accepted. With
`--learn FILE` the calibration is measured first, with the questions of another file; `--svg FILE` draws what was found.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import eagle_jax
from benchmarks.common.command import begin, numbers, parser, prompts
from benchmarks.common.tables import progress, show
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.tree import Tree, depth_below
from eagle_jax.decoding.verify import walk
from eagle_jax.drafters.base import CommittedRows, Wrapper
from eagle_jax.evaluation import drawing
from eagle_jax.methods.choice import drafter_for
from eagle_jax.models.target import Target
from eagle_jax.struct import pytree
from eagle_jax.tuning.calibrate import after_answers, calibrate

DEPTHS, BUCKETS = 8, 10
BOUND, ENOUGH = 0.05, 1000  # error, in buckets with as many cases
PREDICTIONS = ("as the head says", "calibrated", "log-odds doubled")


@pytree
class Sorted:
    """A drafter's state, and the nodes of its trees by prediction, depth and bucket: how many, the sum of the predicted
    probabilities, and how many were accepted.
    """

    state: Any
    nodes: Float[Array, "b 3 d u 3"]


@pytree
class Sorter(Wrapper):
    """Drafts as another drafter does, and sorts the nodes that were verified."""

    def init(self, target: Target, batch: int, slots: int) -> Sorted:
        nodes = jnp.zeros((batch, len(PREDICTIONS), DEPTHS, BUCKETS, 3), jnp.float32)
        return Sorted(self.drafter.init(target, batch, slots), nodes)

    def observe(self, target: Target, state: Sorted, observed: CommittedRows) -> Sorted:
        nodes, checked = state.nodes, observed.checked
        if checked is not None:
            found = sorted_nodes(checked.tree, checked.draws, self.shape.depth)
            nodes = nodes + jnp.where((observed.count > 0)[:, None, None, None, None], found, 0.0)
        return Sorted(self.drafter.observe(target, state.state, observed), nodes)

    def propose(self, target: Target, state: Sorted, view: Any, mode: Any) -> tuple[Tree, Sorted]:
        tree, inner = self.drafter.propose(target, state.state, view, mode)
        return tree, dataclasses.replace(state, state=inner)


def sorted_nodes(tree: Tree, draws: Array, depth: int) -> Float[Array, "b 3 d u 3"]:
    """`Sorted.nodes` of one step."""
    ancestors = tree.ancestors
    path = walk(tree, draws, depth, ancestors)
    steps = jnp.arange(depth + 1)
    is_read = steps[None] < path.count[:, None]
    is_node = path.nodes[:, :, None] == jnp.arange(tree.tokens.shape[1])
    accepted = jnp.any(is_node & is_read[:, :, None], axis=1)
    doubled = jax.nn.log_sigmoid(2 * (tree.edges - jnp.log(-jnp.expm1(jnp.minimum(tree.edges, -1e-7)))))

    def along_path(edges: Array) -> Array:
        edges = jnp.where(tree.valid & (tree.parent >= 0), edges, 0.0)
        return jnp.exp(jnp.sum(jnp.where(ancestors, edges[:, None], 0.0), axis=2))

    predicted = jnp.stack([along_path(tree.edges), jnp.exp(tree.scores), along_path(doubled)], axis=1)
    is_guess = tree.valid & (tree.parent >= 0)
    at_depth = jax.nn.one_hot(jnp.minimum(depth_below(ancestors), DEPTHS) - 1, DEPTHS) * is_guess[:, :, None]
    bucket = jax.nn.one_hot(jnp.minimum(predicted * BUCKETS, BUCKETS - 1).astype(jnp.int32), BUCKETS)
    one = jnp.ones_like(predicted)
    facts = jnp.stack([one, predicted, accepted[:, None] * one], axis=-1)
    return jnp.einsum("bnd,bpnu,bpnf->bpduf", at_depth, bucket, facts)


def main() -> None:
    arguments = parser(__doc__, new_tokens=64)
    arguments.add_argument("--tree", type=numbers, default=(16, 5, 3), help="nodes,depth,top-k (16,5,3)")
    arguments.add_argument("--learn", type=pathlib.Path, metavar="FILE", help="questions to measure a calibration with")
    arguments.add_argument("--svg", type=pathlib.Path, metavar="FILE", help="draw what was found")
    arguments.add_argument("--dtype", help="as for `load`")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head, dtype=options.dtype)
    if options.learn is not None:
        known = prompts(model, options.learn, options.limit, options.new_tokens, options.every)
        prior = calibrate(model, known, max_new_tokens=options.new_tokens, progress=progress)
        model = dataclasses.replace(model, calibration=prior)
    asked = prompts(model, options.questions, options.limit, options.new_tokens, options.every)
    drafter = Sorter(drafter_for(model, "auto", DynamicTree(*options.tree)))
    drawn: dict[str, list[tuple[float, float]]] = {}
    for name, temperature in (("greedy", 0.0), ("T=1", 1.0)):
        found = np.zeros((len(PREDICTIONS), DEPTHS, BUCKETS, 3))
        for _, state in after_answers(model, drafter, asked, options.new_tokens, temperature):
            found += np.asarray(state.nodes, np.float64).sum(axis=0)
        report(name, found)
        for prediction in (0, 1):
            cases, predicted, accepted = found[prediction][found[prediction, ..., 0] >= ENOUGH // 10].T
            drawn[f"{name}, {PREDICTIONS[prediction]}"] = list(zip(predicted / cases, accepted / cases, strict=True))
    if options.svg is not None:
        figure = drawing.agreement(drawn, "Accepted paths against predicted ones", ("predicted", "accepted"))
        options.svg.write_text(drawing.standalone(figure) + "\n", encoding="utf-8")


def report(name: str, found: np.ndarray) -> None:
    rows: list[tuple[object, ...]] = []
    for depth in range(DEPTHS):
        cells: list[object] = []
        for prediction in range(len(PREDICTIONS)):
            cases, predicted, accepted = found[prediction, depth].sum(axis=0)
            cells += [int(cases)] * (prediction == 0) + [predicted / max(cases, 1)]
        rows.append((depth + 1, *cells, accepted / max(cases, 1)))
    show(f"{name}: mean over all nodes, by depth", ("depth", "nodes", *PREDICTIONS, "accepted"), rows)
    rows = []
    for prediction, title in enumerate(PREDICTIONS):
        cases, predicted, accepted = np.moveaxis(found[prediction], -1, 0)
        errors = np.abs(predicted - accepted) / np.maximum(cases, 1)
        for least in (ENOUGH, ENOUGH // 10):
            large = cases >= least
            worst = errors[large].max(initial=0.0)
            rows.append((title, f">= {least}", int(large.sum()), worst, bool(worst <= BOUND)))
    show(f"{name}: error of buckets", ("prediction", "cases", "buckets", "worst error", f"<= {BOUND}"), rows)


if __name__ == "__main__":
    begin(main)
