"""Measures what draft trees cost and bring on this machine, and chooses: what `eagle-jax tune` does.

Everything is timed in the loop itself, a few steps at a time, of programs that take turns: a step that checks so many
nodes and drafts nothing, and one that drafts and checks nothing. From both, and from how far trees of every size would
have gone on real text, follows the speed of every tree; the two that promise most are then timed whole against plain
decoding, which wins where they lose, the default tree, and on CPUs trees that end where the drafter is unsure.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax

from eagle_jax.chat.prompts import Prompt
from eagle_jax.checks import whole_number
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.timing import DraftOnly
from eagle_jax.inspection.start import Start, TimedRun, greedy_requests, shortened, time_answers
from eagle_jax.loading.model import Model
from eagle_jax.methods.budgets import MARGIN, Budget, numbers_of, place
from eagle_jax.methods.choice import default_tree, drafter_for
from eagle_jax.methods.registry import TUNED, method_of
from eagle_jax.requests.request import Request
from eagle_jax.scheduling.batch import Batch
from eagle_jax.scheduling.batch_shape import shape_for
from eagle_jax.scheduling.sizes import rows_for
from eagle_jax.sharding import to_host
from eagle_jax.tuning.costs import Grid, drafter_with, grid_for, measure
from eagle_jax.tuning.replay import DraftedTree, Text, by_rank, lengths
from eagle_jax.tuning.tree_costs import Costs, Estimate, candidates, ranked

QUESTIONS = (
    "A train travels 60 miles in 2 hours. How fast is it?",
    "Write a short letter to a friend who is moving to another town.",
    "Why is the sky blue, and why is it red in the evening?",
    "Translate into French: The library closes at six, but the garden stays open.",
    "Summarise in two sentences what a bank does with the money that people leave there.",
    "Write a Python function that tells whether a word reads the same backwards.",
    "Tom has 3 boxes of 12 eggs and gives away 7 eggs. How many eggs does he have left?",
    "Name three things to see in Rome and say why each is worth the walk.",
)

READ = 96  # tokens of every answer that trees are drafted along, and that are timed whole
TEXTS = 4  # at most, or batches of them, that are timed whole
# The cost of a step of these depends on the text: they are timed, not estimated, where there is one answer at a time.
THRESHOLD_TREES = (
    DynamicTree(4, 2, 2, min_probability=0.1),
    DynamicTree(6, 4, 1, min_probability=0.15),
    DynamicTree(6, 3, 2, min_probability=0.05),
    DynamicTree(8, 3, 2, min_probability=0.03),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned:
    """What was found at one batch size.

    Attributes:
        budget: what is kept of it.
        costs: seconds of the parts of a step.
        estimates: plain decoding (tree None) and every tree, the most promising first.
        measured: tokens a second, all rows together, of those that were timed whole, plain decoding (None) first.
        by_rank: how often the drafter's i-th guess at each depth was right, `[depth][rank]`.
    """

    budget: Budget
    costs: Costs
    estimates: list[Estimate]
    measured: dict[DynamicTree | None, float]
    by_rank: list[list[float]]

    def promised(self, estimate: Estimate) -> float:
        """Returns the tokens per second of all rows together."""
        return estimate.tokens_per_second * self.budget.rows


def tune(
    model: Model,
    *,
    drafter: str = "auto",
    batch_sizes: Sequence[int] = (1, 4, 8, 16),
    prompts: Sequence[Prompt] | None = None,
    max_new_tokens: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Tuned]:
    """Finds the tree that decodes fastest, for each batch size; `budgets.keep` keeps what was found.

    Args:
        model: from `load`.
        drafter: a name that has dynamic trees: an EAGLE head's, P-EAGLE, DFlash, Medusa, Hydra, or a draft model.
        batch_sizes: answers decoded together, ascending; each is rounded up as batches are.
        prompts: what acceptance is measured on; None takes a few questions.
        max_new_tokens: length of the answers that caches are made for.
        progress: called with (steps done, steps in all).

    Raises:
        ValueError: the model has nothing to draft with, or no tokenizer to read the built-in questions with; what
            `generate` raises of prompts.
    """
    name = method_of(model, drafter)
    drafter_for(model, drafter, "auto")
    if name not in TUNED:
        names = ", ".join(TUNED)
        if name == "none":
            raise ValueError("there is nothing to tune: the model has no head, nor a draft model; load it with one")
        raise ValueError(f'drafter="{name}" has no trees to choose a size of; those that have: {names}')
    sizes = sorted({rows_for(model, whole_number("batch size", size, 1)) for size in batch_sizes})
    if not sizes:
        raise ValueError("no batch sizes; give at least one, such as 1")
    if prompts is None and model.tokenizer is None:
        raise ValueError("the model's folder holds no tokenizer to read the built-in questions with; give prompts")
    prompts_to_draft = built_in_questions(model) if prompts is None else list(prompts)
    requests = greedy_requests(model, prompts_to_draft, max_new_tokens)
    return _tune(model, name, sizes, requests, progress or (lambda done, total: None))


def _tune(
    model: Model, name: str, sizes: Sequence[int], requests: list[Request], progress: Callable[[int, int], None]
) -> Iterator[Tuned]:
    grid = grid_for(model)
    # reading the texts, and for each batch size the verifying steps, two depths of each width, and whole answers
    steps = 1 + sum(len(grid.nodes) + 2 * len(grid.widths) + 4 + len(_threshold_trees(grid, rows)) for rows in sizes)
    done = itertools.count(1)

    def advance() -> None:
        progress(min(next(done), steps), steps)

    endless = dataclasses.replace(model, stop_ids=())  # a text that goes on shows how far every tree would have gone
    short = [shortened(request, READ) for request in requests]
    largest = drafter_with(model, name, dataclasses.replace(grid.largest, best_first=True))
    texts = draft_along(endless, largest, short)
    advance()
    by_tree = lengths(texts, candidates(grid.largest, grid.all_widths))
    ranks = by_rank(texts, grid.largest.depth, grid.largest.top_k)
    for rows in sizes:
        batches = _batches(short, rows)
        start = Start(endless, largest, batches[0], others=requests)
        costs = measure(start, name, grid, advance)
        estimates = ranked(costs, by_tree)
        hopeful = [one.tree for one in estimates if one.tree is not None][:2]
        default = default_tree(model, name, rows)
        # a tree of fixed shape, which Medusa has by default where there is room, is not one that a finding can hold
        trees = [*hopeful, *([default] if isinstance(default, DynamicTree) else []), *_threshold_trees(grid, rows)]
        drafters: dict[DynamicTree | None, Drafter] = {None: Plain()}
        drafters |= {tree: drafter_with(model, name, tree) for tree in trees}
        runs = [time_answers(start, drafters, advance)]
        for batch in batches[1:]:
            start.batch.free()  # there may be no room for its caches and the next one's
            start = Start(endless, largest, batch, others=requests)
            runs.append(time_answers(start, drafters))
        measured = {tree: _together(run[tree] for run in runs) for tree in drafters}
        tree = fastest(measured)
        where, fingerprint, mesh, _ = place(model, name)
        budget = Budget(
            device=where,
            model=fingerprint,
            mesh=dict(mesh),
            method=name,
            rows=rows,
            slots=start.batch.shape.slots,
            tree=numbers_of(tree),
            plain=measured[None],
            speed=measured[tree],
        )
        start.batch.free()
        yield Tuned(budget=budget, costs=costs, estimates=estimates, measured=measured, by_rank=ranks)


def draft_along(model: Model, drafter: Drafter, requests: Sequence[Request]) -> list[Text]:
    """Decodes the requests plainly, and returns the answers with what was drafted at every token."""
    drafter = DraftOnly(drafter)
    batch = Batch(model, drafter, shape_for(model, drafter, requests, len(requests)), requests)
    drafted: list[list[DraftedTree]] = [[] for _ in requests]
    while not all(row.done for row in batch.rows):
        batch.decode(1)
        tree = batch.state.draft.tree
        tokens, parents, valid = to_host((tree.tokens, tree.parent, tree.valid))
        for at, trees in enumerate(drafted):
            guesses = int(valid[at].sum())  # best first: what is no guess comes last
            trees.append(DraftedTree(tokens[at, :guesses].tolist(), parents[at, :guesses].tolist()))
    texts = []
    for row, trees in zip(batch.rows, drafted, strict=True):
        tokens = list(row.output.token_ids)
        texts.append(Text(tokens, trees[: max(0, len(tokens) - 1 - drafter.shape.depth)]))
    return texts


def _together(runs: Iterable[TimedRun]) -> float:
    """Returns the tokens per second of several runs."""
    tokens, seconds = zip(*((timed_run.tokens, timed_run.seconds) for timed_run in runs), strict=True)
    return sum(tokens) / sum(seconds)


def _batches(requests: Sequence[Request], rows: int) -> list[list[Request]]:
    """Makes batches of `rows` of the requests, which are repeated where they are too few for one."""
    count = min(TEXTS, max(1, len(requests) // rows))
    again = list(requests) * rows
    return [again[index * rows : (index + 1) * rows] for index in range(count)]


def _threshold_trees(grid: Grid, rows: int) -> list[DynamicTree]:
    """Returns trees that end where the drafter is unsure, for `rows` answers at a time, within the largest tree."""
    if jax.default_backend() != "cpu" or rows > 1:
        return []
    return [tree for tree in THRESHOLD_TREES if tree.depth <= grid.largest.depth and tree.top_k <= grid.largest.top_k]


def fastest(measured: Mapping[DynamicTree | None, float]) -> DynamicTree | None:
    """Returns the tree with the most tokens a second; None, plain decoding, where none gains `MARGIN` over it."""
    best = max(measured, key=lambda tree: measured[tree])
    return best if measured[best] > MARGIN * measured[None] else None


def built_in_questions(model: Model) -> list[Prompt]:
    """Returns the built-in questions, as chats where the tokenizer has a template."""
    if not getattr(model.tokenizer, "chat_template", None):
        return list(QUESTIONS)
    return [[{"role": "user", "content": question}] for question in QUESTIONS]
