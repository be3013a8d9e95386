"""How many tokens does a target pass commit: greedy, sampled with shared noise, sampled without?

At temperature > 0 the target draws with noise that depends on (seed, position). The drafter may rank its guesses with
the same noise (coupled) or by probability alone (uncoupled); the text is the same, the number of passes is not.
"""

from common import begin, parser, prompts, report, table

import eagle_jax
from eagle_jax.drafters.eagle import Eagle
from eagle_jax.tuning.methods import asked_tree


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], new_tokens=256)
    arguments.add_argument("--tree", type=int, nargs=3, default=(60, 7, 10), metavar=("NODES", "DEPTH", "TOP_K"))
    arguments.add_argument("--temperatures", type=float, nargs="+", default=[1.0], help="besides greedy (default: 1)")
    arguments.add_argument("--top-p", type=float, default=1.0)
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head)
    asked = prompts(model, options.questions, options.limit, options.new_tokens)
    policy = asked_tree(tuple(options.tree))
    cases = [("greedy", 0.0, True)]
    for temperature in options.temperatures:
        cases += [(f"T={temperature:g}, {name}", temperature, name == "coupled") for name in ("coupled", "uncoupled")]

    rows, greedy = [], None
    for name, temperature, coupled in cases:
        results = eagle_jax.generate(
            model,
            asked,
            max_new_tokens=options.new_tokens,
            temperature=temperature,
            top_p=options.top_p,
            seed=list(range(len(asked))),
            drafter=Eagle(head=model.head, policy=policy, coupled=coupled),
            progress=report,
        )
        cycles = sum(result.stats.cycles for result in results)
        depths = range(len(results[0].stats.accepted_by_depth))
        reached = [
            sum(r.stats.accepted_by_depth[d] * r.stats.cycles for r in results if r.stats.cycles) / cycles
            for d in depths
        ]
        length = 1 + sum(reached)
        greedy = length if greedy is None else greedy
        shares = " ".join(f"{share:.2f}" for share in reached)
        rows.append((name, f"{length:.2f}", f"{length / greedy:.0%}", shares))
    print(table(("sampling", "mean accepted length", "of greedy", "accepted at depth 1, 2, ..."), rows))


if __name__ == "__main__":
    begin(main)
