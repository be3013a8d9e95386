"""Are greedy token ids in float32 those of transformers, which reads the same folder or expands the same GGUF file?

Where an answer parts, the first place is told, with the two best logits there: rounding decides between near-ties.
Exits with 1 if an answer parts elsewhere.

    python -m benchmarks.peers.same_ids --target model.gguf --questions QUESTIONS.jsonl --limit 20
"""

import eagle_jax
from benchmarks.common.command import begin, parser, prompts
from benchmarks.common.tables import progress, show
from benchmarks.peers import hf
from eagle_jax import api
from eagle_jax.loading.folders import folders_of

NEAR = 1e-3  # difference of logits that rounding in float32 can turn round


def main() -> int:
    options = parser(__doc__, new_tokens=64).parse_args()
    folder, _ = folders_of(options.target, options.head)
    model = eagle_jax.load(options.target, options.head, dtype="float32")
    asked = prompts(model, options.questions, options.limit, options.new_tokens, options.every)
    plain = eagle_jax.generate(model, asked, max_new_tokens=options.new_tokens, drafter="none")
    theirs = hf.methods(hf.loaded(folder, "float32", until_end=True), options.new_tokens, "float32")[
        "HF generate, float32"
    ]
    same = near = 0
    rows = []
    for number, (prompt, result) in enumerate(zip(asked, plain, strict=True), start=1):
        ids, other = result.token_ids, theirs(prompt).token_ids
        progress(number, len(asked))
        place = next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), None)
        if place is None:
            same += 1
            continue
        (_, high), (_, low) = api.closest_draws(model, [*prompt, *ids[:place]])
        near += high - low < NEAR
        rows.append((number, place + 1, ids[place], other[place], f"{high - low:.2g}"))
    if rows:
        show("Where answers part", ("question", "token", "ours", "transformers", "gap of the two best logits"), rows)
    print(f"\n{same} of {len(asked)} answers of up to {options.new_tokens} tokens have the ids of transformers")
    return int(same + near < len(asked))


if __name__ == "__main__":
    begin(main)
