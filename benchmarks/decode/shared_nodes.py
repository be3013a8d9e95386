"""What are the nodes of a step worth: the best of all requests' trees, and each request's own?

    python -m benchmarks.decode.shared_nodes --target smollm2-135m-instruct --questions QUESTIONS.jsonl

Records the trees that the head drafts at every step of the answers, with what was accepted of each. Then steps of
different requests are put together at random, as in a batch: of each the nodes are taken that a budget has room for,
by request or the best of all, and the accepted ones among them are counted. Nothing is timed.
"""

import math

import numpy as np

import eagle_jax
from benchmarks.common.command import begin, numbers, parser, prompts
from benchmarks.common.tables import progress, show
from eagle_jax import api
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.drafters.eagle import Eagle

Recorded = tuple[np.ndarray, np.ndarray]  # of a step: scores of its nodes, best first, and which of them were accepted


def recorded(step: api.Step) -> Recorded:
    assert step.scores is not None, "the drafter has no scores"
    scores, accepted = np.array(step.scores), np.zeros(len(step.scores), bool)
    accepted[step.accepted] = True
    order = np.argsort(-scores, kind="stable")  # of equal scores the parent comes first
    return scores[order], accepted[order]


def tokens(batch: list[Recorded], each: int, shared: bool) -> float:
    """Tokens of a step for each request, `each` nodes a request."""
    if not shared:
        return float(np.mean([accepted[:each].sum() for _, accepted in batch]))
    scores, accepted = (np.concatenate([part[at] for part in batch]) for at in (0, 1))
    roots = np.cumsum([0, *(len(part[0]) for part in batch[:-1])])
    scores[roots] = math.inf  # each request keeps its own
    best = np.argsort(-scores, kind="stable")[: each * len(batch)]
    return float(accepted[best].sum() / len(batch))


def main() -> None:
    arguments = parser(__doc__, new_tokens=64)
    arguments.add_argument("--tree", type=numbers, default=(60, 7, 10), help="nodes,depth,top-k (60,7,10)")
    arguments.add_argument("--temperature", type=float, default=0.0)
    arguments.add_argument("--requests", type=numbers, default=(4, 16, 64), help="at a time (4,16,64)")
    arguments.add_argument("--nodes", type=numbers, default=(1, 2, 4, 8, 16), help="for each, the root included")
    arguments.add_argument("--quantize", help="as for `load`")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head, quantize=options.quantize)
    asked = prompts(model, options.questions, options.limit, options.new_tokens, options.every)
    drafter = Eagle(model.head, DynamicTree(*options.tree))
    steps: list[list[Recorded]] = []
    for done, prompt in enumerate(asked, start=1):
        how = dict(max_new_tokens=options.new_tokens, temperature=options.temperature, seed=done)
        traced = api.trace(model, prompt, steps=options.new_tokens, drafter=drafter, **how)
        steps.append([recorded(step) for step in traced])
        progress(done, len(asked))
    rng, rows = np.random.default_rng(0), []
    for requests in options.requests:
        batches = []
        for _ in range(400):
            chosen = rng.choice(len(steps), requests, replace=requests > len(steps))
            batches.append([steps[i][rng.integers(len(steps[i]))] for i in chosen])
        for each in options.nodes:
            own, best = (np.mean([tokens(batch, each, shared) for batch in batches]) for shared in (False, True))
            rows.append((requests, requests * each, each, own, best, f"{best / own - 1:+.1%}"))
    columns = ("requests", "nodes", "for each", "tokens a step, of its own", "of the best of all", "more")
    show(f"{sum(map(len, steps))} steps of {len(asked)} questions", columns, rows)


if __name__ == "__main__":
    begin(main)
