"""Which drafter is fastest for so many requests at a time, found out while they are answered.

What a tree brings depends on the text, what it costs on the machine, its load and the weights. So each step's time is
measured where it is spent, and whatever loses, drafting or plain decoding, is left. Texts are the same with any of
them.
"""

import dataclasses

from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.base import Drafter
from eagle_jax.tuning.budgets import Budget, numbers_of, place
from eagle_jax.tuning.by_load import ByLoad
from eagle_jax.tuning.methods import TUNED, Choice

FIRST_TRIALS = 3  # runs of each drafter, before the faster ones are preferred
COST_OF_TRIALS = 0.01  # of the time, of each slower drafter
SOONEST, LATEST = 24, 500  # runs between two of its trials in any case
MEMORY = 0.9  # weight of a run beside that of the next
ENOUGH = 300  # runs of all drafters for a number of rows from which it is known which one is fastest


@dataclasses.dataclass
class Spent:
    """What a drafter took, for one number of rows.

    Attributes:
        nodes: of its trees, the root included: 1 is plain decoding.
        runs, steps, tokens, seconds: all of them; tokens are those of all requests.
    """

    nodes: int
    runs: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    recent_tokens: float = 0.0  # of a request, those of later runs counting for more
    recent_seconds: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens a second of a request."""
        return self.recent_tokens / self.recent_seconds if self.recent_seconds else 0.0

    def add(self, steps: int, tokens: int, requests: int, seconds: float) -> None:
        """One run of the loop."""
        self.runs, self.steps = self.runs + 1, self.steps + steps
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        self.recent_tokens = MEMORY * self.recent_tokens + tokens / requests
        self.recent_seconds = MEMORY * self.recent_seconds + seconds


class Contest:
    """The drafters for one number of rows, of which the fastest runs, and the others now and then."""

    def __init__(self, drafters: list[Drafter]):
        self.drafters = drafters
        self.spent = [Spent(drafter.shape.nodes) for drafter in drafters]
        self._waited = [0] * len(drafters)  # runs of others since each ran
        self._tried = [0] * len(drafters)  # how often each was chosen: one that fails is not chosen for ever

    def choose(self) -> int:
        """The number of the drafter that runs next."""
        index = self._choice()
        self._tried[index] += 1
        return index

    def _choice(self) -> int:
        everyone = range(len(self.drafters))
        new = [index for index in everyone if self._tried[index] < FIRST_TRIALS]
        if new:
            return new[0]
        fastest = self.fastest
        due = [index for index in everyone if self._waited[index] >= self._interval(index, fastest)]
        return max(due, key=self._waited.__getitem__) if due else fastest

    @property
    def fastest(self) -> int:
        """The number of the drafter that was fastest lately."""
        return max(range(len(self.drafters)), key=lambda index: self.spent[index].speed)

    def _interval(self, index: int, fastest: int) -> float:
        """Runs after which a slower drafter is tried again: the more, the more a trial costs."""
        lost = self.spent[fastest].speed / max(self.spent[index].speed, 1e-9) - 1
        return float(min(max(lost / COST_OF_TRIALS, SOONEST), LATEST))

    def add(self, index: int, steps: int, tokens: int, requests: int, seconds: float) -> None:
        """Takes in what a run of drafter number `index` took."""
        if not steps:
            return
        self.spent[index].add(steps, tokens, requests, seconds)
        self._waited = [0 if one == index else runs + 1 for one, runs in enumerate(self._waited)]


class Measured:
    """The drafters of a `ByLoad`, chosen by what they took so far."""

    def __init__(self, by_load: ByLoad):
        self.by_load = by_load
        sizes = dict.fromkeys(rows for rows, _ in by_load.entries)
        self.contests = {
            size: Contest([drafter for rows, drafter in by_load.entries if rows == size]) for size in sizes
        }

    def choose(self, running: int) -> tuple[int, int, Drafter]:
        """Rows of the smallest step that so many take part in, and the drafter for it with its number."""
        size = self.by_load.rows_for(running)
        index = self.contests[size].choose()
        return size, index, self.contests[size].drafters[index]

    def spent(self) -> list[tuple[int, Spent]]:
        """What was spent so far, by the rows of a step and the drafter."""
        return [(size, spent) for size, contest in self.contests.items() for spent in contest.spent if spent.runs]

    def findings(self, choice: Choice, slots: int) -> list[Budget]:
        """What later engines and `generate` may go by: the fastest tree for each number of rows, where it is known.

        Args:
            choice: what the drafters are of; only `tree="auto"` of a method with trees finds anything.
            slots: of the caches.
        """
        if not choice.by_batch or choice.method not in TUNED:
            return []
        device, model, mesh, method = place(choice.model, choice.method)
        found = []
        for rows, contest in self.contests.items():
            fastest = contest.fastest
            plain = next((spent.speed for spent in contest.spent if spent.nodes == 1), None)
            tree = contest.drafters[fastest].shape
            known = sum(spent.runs for spent in contest.spent) >= ENOUGH and len(contest.spent) > 1
            if not known or plain is None or not (tree.nodes == 1 or isinstance(tree, DynamicTree)):
                continue
            found.append(
                Budget(
                    device=device,
                    model=model,
                    mesh=dict(mesh),
                    method=method,
                    rows=rows,
                    slots=slots,
                    tree=numbers_of(tree if isinstance(tree, DynamicTree) else None),
                    plain=rows * plain,
                    speed=rows * contest.spent[fastest].speed,
                    by="engine",
                )
            )
        return found
