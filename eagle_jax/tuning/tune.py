"""Measures costs and gains of draft trees on this machine, and chooses the fastest, for `eagle-jax tune`.

Parts of a step are timed in the decoding loop, in alternating programs: verifying trees of several sizes without
drafting, and drafting without verifying. With the numbers of tokens that trees of every size would have committed on
real text, this gives an estimated speed of every tree. The two fastest are then timed on whole answers against plain
decoding, the default tree, and on CPUs trees with a probability threshold.
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
from eagle_jax.methods.budgets import MARGIN, Budget, numbers_of, setup
from eagle_jax.methods.choice import default_tree, drafter_for
from eagle_jax.methods.registry import TUNED, method_of
from eagle_jax.requests.request import Request
from eagle_jax.scheduling.batch import Batch
from eagle_jax.scheduling.batch_shape import shape_for
from eagle_jax.scheduling.sizes import padded_batch_size
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

ANSWER_TOKENS = 96  # tokens of each answer that is drafted along and timed
MAX_BATCHES = 4  # maximum number of batches that are timed
# Their cost depends on the text, so they are timed and not estimated, and only for one answer at a time.
THRESHOLD_TREES = (
    DynamicTree(4, 2, 2, min_probability=0.1),
    DynamicTree(6, 4, 1, min_probability=0.15),
    DynamicTree(6, 3, 2, min_probability=0.05),
    DynamicTree(8, 3, 2, min_probability=0.03),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result for one batch size.

    Attributes:
        budget: the chosen tree, as it is stored.
        costs: seconds of the parts of a step.
        estimates: plain decoding (tree None) and every tree, the fastest first.
        measured: tokens per second, all rows together, of the timed trees, plain decoding (None) first.
        by_rank: how often the drafter's i-th token at each depth was right, `[depth][rank]`.
    """

    budget: Budget
    costs: Costs
    estimates: list[Estimate]
    measured: dict[DynamicTree | None, float]
    by_rank: list[list[float]]

    def promised(self, estimate: Estimate) -> float:
        """Returns the estimated tokens per second of all rows together."""
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
    """Finds the fastest tree for each batch size; `budgets.keep` stores the results.

    Args:
        model: from `load`.
        drafter: a method with dynamic trees: an EAGLE head's, P-EAGLE, DFlash, Medusa, Hydra, or a draft model.
        batch_sizes: numbers of answers decoded together, ascending; each is rounded up like batches.
        prompts: prompts to measure acceptance on; None takes a few questions.
        max_new_tokens: length of the answers that caches are made for.
        progress: called with (steps done, steps in all).

    Raises:
        ValueError: the model has no drafter, or no tokenizer for the built-in questions; or as `generate` does for
            prompts.
    """
    name = method_of(model, drafter)
    drafter_for(model, drafter, "auto")
    if name not in TUNED:
        names = ", ".join(TUNED)
        if name == "none":
            raise ValueError("there is nothing to tune: the model has no head, nor a draft model; load it with one")
        raise ValueError(f'drafter="{name}" has no trees to choose a size of; those that have: {names}')
    sizes = sorted({padded_batch_size(model, whole_number("batch size", size, 1)) for size in batch_sizes})
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
    # drafting along the texts, and for each batch size the verifying steps, two depths of each width, whole answers
    steps = 1 + sum(len(grid.nodes) + 2 * len(grid.widths) + 4 + len(_threshold_trees(grid, rows)) for rows in sizes)
    done = itertools.count(1)

    def advance() -> None:
        progress(min(next(done), steps), steps)

    endless = dataclasses.replace(model, stop_ids=())  # answers of full length
    short = [shortened(request, ANSWER_TOKENS) for request in requests]
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
        fastest_trees = [estimate.tree for estimate in estimates if estimate.tree is not None][:2]
        default = default_tree(model, name, rows)
        # Medusa's default tree may have a fixed shape, which a `Budget` cannot hold.
        trees = [
            *fastest_trees,
            *([default] if isinstance(default, DynamicTree) else []),
            *_threshold_trees(grid, rows),
        ]
        drafters: dict[DynamicTree | None, Drafter] = {None: Plain()}
        drafters |= {tree: drafter_with(model, name, tree) for tree in trees}
        runs = [time_answers(start, drafters, advance)]
        for batch in batches[1:]:
            start.batch.free()  # the caches of two batches may not fit
            start = Start(endless, largest, batch, others=requests)
            runs.append(time_answers(start, drafters))
        measured = {tree: _tokens_per_second(run[tree] for run in runs) for tree in drafters}
        tree = fastest(measured)
        device, fingerprint, mesh, _ = setup(model, name)
        budget = Budget(
            device=device,
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
    """Decodes the requests without speculation, and returns the answers with the tree drafted at each token."""
    drafter = DraftOnly(drafter)
    batch = Batch(model, drafter, shape_for(model, drafter, requests, len(requests)), requests)
    drafted: list[list[DraftedTree]] = [[] for _ in requests]
    while not all(row.done for row in batch.rows):
        batch.decode(1)
        tree = batch.state.draft.tree
        tokens, parents, valid = to_host((tree.tokens, tree.parent, tree.valid))
        for i, trees in enumerate(drafted):
            nodes = int(valid[i].sum())  # best first: invalid nodes come last
            trees.append(DraftedTree(tokens[i, :nodes].tolist(), parents[i, :nodes].tolist()))
    texts = []
    for row, trees in zip(batch.rows, drafted, strict=True):
        tokens = list(row.output.token_ids)
        texts.append(Text(tokens, trees[: max(0, len(tokens) - 1 - drafter.shape.depth)]))
    return texts


def _tokens_per_second(runs: Iterable[TimedRun]) -> float:
    """Returns the tokens per second of several runs."""
    tokens, seconds = zip(*((timed_run.tokens, timed_run.seconds) for timed_run in runs), strict=True)
    return sum(tokens) / sum(seconds)


def _batches(requests: Sequence[Request], rows: int) -> list[list[Request]]:
    """Makes batches of `rows` requests, which are repeated if there are fewer than `rows`."""
    count = min(MAX_BATCHES, max(1, len(requests) // rows))
    repeated = list(requests) * rows
    return [repeated[index * rows : (index + 1) * rows] for index in range(count)]


def _threshold_trees(grid: Grid, rows: int) -> list[DynamicTree]:
    """Returns the trees with a probability threshold to time, no larger than the largest tree."""
    if jax.default_backend() != "cpu" or rows > 1:
        return []
    return [tree for tree in THRESHOLD_TREES if tree.depth <= grid.largest.depth and tree.top_k <= grid.largest.top_k]


def fastest(measured: Mapping[DynamicTree | None, float]) -> DynamicTree | None:
    """Returns the tree with the most tokens per second; None if none is faster than plain decoding by `MARGIN`."""
    best = max(measured, key=lambda tree: measured[tree])
    return best if measured[best] > MARGIN * measured[None] else None


def built_in_questions(model: Model) -> list[Prompt]:
    """Returns the built-in questions, as chats if the tokenizer has a template."""
    if not getattr(model.tokenizer, "chat_template", None):
        return list(QUESTIONS)
    return [[{"role": "user", "content": question}] for question in QUESTIONS]
