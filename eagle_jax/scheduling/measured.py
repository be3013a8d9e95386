"""Finds the fastest drafter for each number of concurrent requests while they are answered.

The tokens that a tree gains depend on the text; its cost depends on the machine, its load and the weights. So the time
of each run is measured, and the slower choice, drafting or plain decoding, is given up. All choices give the same text.
"""

import dataclasses

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.tree import TreeShape
from eagle_jax.drafters.base import Drafter
from eagle_jax.methods.budgets import MARGIN, Budget, numbers_of, setup
from eagle_jax.methods.choice import Choice
from eagle_jax.methods.registry import TUNED
from eagle_jax.scheduling.by_load import ByLoad

FIRST_TRIALS = 3  # runs of each drafter, before the faster ones are preferred
COST_OF_TRIALS = 0.003  # fraction of the time that the trials of each slower drafter may cost
MIN_TRIAL_INTERVAL, MAX_TRIAL_INTERVAL = 24, 1500  # runs between two trials of a slower drafter
DECAY = 0.9  # weight of a run relative to the next run
MIN_RUNS_FOR_FINDINGS = 300  # runs of all drafters for a number of rows, after which the fastest is known


@dataclasses.dataclass
class Spent:
    """The time that a drafter took, for one number of rows.

    Attributes:
        nodes: nodes of its trees, root included: 1 is plain decoding.
        runs, steps, tokens, seconds: totals, over all requests.
    """

    nodes: int
    runs: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    recent_tokens: float = 0.0  # per request, weighted towards recent runs
    recent_seconds: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens a second of a request."""
        return self.recent_tokens / self.recent_seconds if self.recent_seconds else 0.0

    @property
    def mean_speed(self) -> float:
        """Tokens a second of all requests, over all runs."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def add(self, steps: int, tokens: int, requests: int, seconds: float) -> None:
        """Adds one run of the loop."""
        self.runs, self.steps = self.runs + 1, self.steps + steps
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        self.recent_tokens = DECAY * self.recent_tokens + tokens / requests
        self.recent_seconds = DECAY * self.recent_seconds + seconds


class Contest:
    """The drafters for one number of rows: the fastest one runs, with occasional trials of the others."""

    def __init__(self, drafters: list[Drafter]):
        self.drafters = drafters
        self.spent = [Spent(drafter.shape.nodes) for drafter in drafters]
        self._runs_since = [0] * len(drafters)  # runs of other drafters since each ran
        self._num_choices = [0] * len(drafters)  # counts failed runs too, so that a failing drafter is given up

    def choose(self) -> int:
        """Returns the number of the drafter that runs next."""
        index = self._choice()
        self._num_choices[index] += 1
        return index

    def _choice(self) -> int:
        indices = range(len(self.drafters))
        untested = [index for index in indices if self._num_choices[index] < FIRST_TRIALS]
        if untested:
            return untested[0]
        fastest = max(indices, key=lambda index: self.spent[index].speed)
        due = [index for index in indices if self._runs_since[index] >= self._interval(index, fastest)]
        return max(due, key=self._runs_since.__getitem__) if due else fastest

    def _interval(self, index: int, fastest: int) -> float:
        """Returns the runs after which a slower drafter is tried again: more if a trial costs more."""
        lost = self.spent[fastest].speed / max(self.spent[index].speed, 1e-9) - 1
        return float(min(max(lost / COST_OF_TRIALS, MIN_TRIAL_INTERVAL), MAX_TRIAL_INTERVAL))

    def add(self, index: int, steps: int, tokens: int, requests: int, seconds: float) -> None:
        """Records a run of drafter number `index`."""
        if not steps:
            return
        self.spent[index].add(steps, tokens, requests, seconds)
        self._runs_since = [0 if i == index else runs + 1 for i, runs in enumerate(self._runs_since)]


class Measured:
    """The drafters of a `ByLoad`, chosen by their measured speeds."""

    def __init__(self, by_load: ByLoad):
        self.by_load = by_load
        sizes = dict.fromkeys(rows for rows, _ in by_load.entries)
        self.contests = {
            size: Contest([drafter for rows, drafter in by_load.entries if rows == size]) for size in sizes
        }

    def choose(self, running: int) -> tuple[int, int, Drafter]:
        """Returns the smallest compiled number of rows for these requests, and the drafter for it with its index."""
        size = self.by_load.rows_for(running)
        index = self.contests[size].choose()
        return size, index, self.contests[size].drafters[index]

    def spent(self) -> list[tuple[int, Spent]]:
        """Returns the time spent so far, by the rows of a step and the drafter."""
        return [(size, spent) for size, contest in self.contests.items() for spent in contest.spent if spent.runs]

    def findings(self, choice: Choice, slots: int) -> list[Budget]:
        """Returns findings for later engines and `generate`: the fastest tree for each number of rows, where it is
        known.

        Args:
            choice: the choice that the drafters come from; only `tree="auto"` of a method with trees finds anything.
            slots: slots of the caches.
        """
        if not choice.by_batch or choice.method not in TUNED:
            return []
        fastest = ((rows, _fastest(contest)) for rows, contest in self.contests.items())
        return [_budget(choice, rows, slots, *one) for rows, one in fastest if one is not None]


def _fastest(contest: Contest) -> tuple[Spent, Spent, TreeShape] | None:
    """Returns the speeds of plain decoding and of the fastest drafter, over all runs, and its tree; None where that is
    not known, or no `Budget` can say it. A tree has to gain `MARGIN`, as in `eagle-jax tune`.
    """
    if sum(spent.runs for spent in contest.spent) < MIN_RUNS_FOR_FINDINGS or any(
        d.budget is not None for d in contest.drafters
    ):
        return None
    arms = list(zip(contest.spent, (drafter.shape for drafter in contest.drafters), strict=True))
    plain = next(((spent, shape) for spent, shape in arms if shape.nodes == 1), None)
    if plain is None or len(arms) < 2 or not all(spent.runs for spent, _ in arms):
        return None
    best, tree = max(arms, key=lambda arm: arm[0].mean_speed)
    if tree.nodes > 1 and best.mean_speed < MARGIN * plain[0].mean_speed:
        best, tree = plain
    return (plain[0], best, tree) if tree.nodes == 1 or isinstance(tree, DynamicTree) else None


def _budget(choice: Choice, rows: int, slots: int, plain: Spent, best: Spent, tree: TreeShape) -> Budget:
    device, model, mesh, method = setup(choice.model, choice.method)
    return Budget(
        device=device,
        model=model,
        mesh=dict(mesh),
        method=method,
        rows=rows,
        slots=slots,
        tree=numbers_of(tree if isinstance(tree, DynamicTree) else None),
        plain=plain.mean_speed,
        speed=best.mean_speed,
        by="engine",
    )
