"""How fast are plain decoding and EAGLE beside HuggingFace `generate`: same weights, same prompts, batch 1, greedy?

HuggingFace runs in float32 and bfloat16, plainly, with prompt lookup and, given `--draft-model`, assisted by a smaller
model; the best `generate` counts. Methods take turns prompt by prompt, every program is warmed up on its own shapes
first, and answers have the same length by construction (no stop token) or, with `--until-end`, end where the model
ends them, as those of users do. Whole requests are timed, prefill included; "decoding alone" leaves prefill out.
`--search` adds draft trees.
"""

import hf
from common import begin, parser, prompts, table
from turns import Method, best_of, in_turns, ours

import eagle_jax
from eagle_jax.api.model import PAIR

SEARCH = [
    (n, d, k)
    for k, n, d in ((1, 3, 1), (1, 4, 2), (1, 5, 3), (1, 6, 4), (1, 8, 6), (2, 6, 2), (2, 6, 3), (2, 8, 4), (3, 8, 3))
]
SEARCH += [(4, 0.5), (6, 0.5), (6, 0.3), (8, 0.5), (8, 0.3), (12, 0.3)]  # chains that end where the head is unsure


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], new_tokens=128)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--until-end", action="store_true", help="answers end where the model ends them")
    arguments.add_argument("--search", action="store_true", help="time a list of small trees too")
    arguments.add_argument("--no-hf", action="store_true", help="leave HuggingFace out (no PyTorch needed)")
    arguments.add_argument("--draft-model", default=None, help="folder of a small model for assisted generation")
    arguments.add_argument("--dtype", default=None, help="of our weights; default: as stored")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head, dtype=options.dtype)
    asked = prompts(model, options.questions, options.limit or 8, options.new_tokens)

    until_end = options.until_end
    methods: dict[str, Method] = {}
    for dtype in () if options.no_hf else ("float32", "bfloat16"):
        draft = None if options.draft_model is None else hf.loaded(options.draft_model, dtype)
        theirs = hf.loaded(options.target or PAIR / "target", dtype, until_end=until_end)
        methods |= hf.methods(theirs, options.new_tokens, dtype, draft)
    methods["eagle_jax plain"] = ours(model, options.new_tokens, "none", until_end=until_end)
    methods["eagle_jax EAGLE, auto"] = ours(model, options.new_tokens, "eagle", until_end=until_end)
    for tree in SEARCH if options.search else []:
        methods[f"eagle_jax EAGLE, {tree}"] = ours(model, options.new_tokens, "eagle", tree, until_end=until_end)

    timed = in_turns(methods, asked, options.repeats)
    plain, best_hf = timed["eagle_jax plain"], best_of(timed, "HF generate")
    rows = [
        (
            name,
            f"{one.speed():.0f}",
            f"{one.length:.2f}",
            "-" if best_hf is None else f"{one.speed() / timed[best_hf].speed():.2f}",
            f"{one.speed() / plain.speed():.2f}",
            f"{one.speed('decoding') / plain.speed('decoding'):.2f}",
        )
        for name, one in timed.items()
    ]
    columns = ("method", "tokens/s", "tokens a pass", "against HF", "against plain", "decoding alone, against plain")
    print(table(columns, rows))


if __name__ == "__main__":
    begin(main)
