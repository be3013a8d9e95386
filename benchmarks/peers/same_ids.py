"""Are greedy token ids in float32 those of transformers, which reads the same folder or expands the same GGUF file?

Tells where answers part. A GGUF file's numbers become floats here, too, unless they are to be kept; products with those
are made of whole numbers on a CPU, whose rows should have 16 bits then.

    python -m benchmarks.peers.same_ids --target model.gguf --questions QUESTIONS.jsonl --limit 20
    EAGLE_JAX_ACTIVATIONS=int16 python -m benchmarks.peers.same_ids --kept --target model.gguf --questions Q.jsonl
"""

import eagle_jax
from benchmarks.common.command import begin, parser, prompts
from benchmarks.common.tables import show
from benchmarks.peers import hf
from eagle_jax import api
from eagle_jax.loading.folders import folders_of


def main() -> int:
    arguments = parser(__doc__, new_tokens=64)
    arguments.add_argument("--repetition-penalty", type=float, default=1.0, help="of both (%(default)s, off)")
    arguments.add_argument("--kept", action="store_true", help="keep the numbers of a quantized file")
    options = arguments.parse_args()
    penalty = {"repetition_penalty": options.repetition_penalty}
    model = eagle_jax.load(options.target, options.head, dtype="float32", quantize=None if options.kept else "none")
    asked = prompts(model, options.questions, options.limit, options.new_tokens, options.every)
    theirs = hf.loaded(folders_of(options.target, options.head)[0], "float32", until_end=True)
    theirs.generation_config.update(**penalty)
    [run, *_] = hf.methods(theirs, options.new_tokens, "float32").values()
    rows: list[tuple[object, ...]] = []
    answers = eagle_jax.generate(model, asked, max_new_tokens=options.new_tokens, **penalty)
    for prompt, result in zip(asked, answers, strict=True):
        ours, other = result.token_ids, run(prompt).token_ids
        if ours != other:
            place = next((i for i, (a, b) in enumerate(zip(ours, other)) if a != b), min(len(ours), len(other)))
            (_, high), (_, low) = api.closest_draws(model, [*prompt, *ours[:place]])
            rows.append((asked.index(prompt) + 1, place + 1, f"{high - low:.2g}"))
    show("Where answers part", ("question", "token", "between the two best logits"), rows)
    print(f"\n{len(asked) - len(rows)} of {len(asked)} answers have the token ids of transformers")
    return int(bool(rows))


if __name__ == "__main__":
    begin(main)
