"""How fast are plain decoding and EAGLE beside what people use: same model, same prompts, batch 1, greedy, all cores?

HuggingFace `generate` runs in float32 and bfloat16, plainly, with prompt lookup and, given `--draft-model`, assisted by
a smaller model. llama.cpp's server runs, given `--llama-cpp` and a target that is a GGUF file, plainly and with each of
its modes that draft from the text. Methods take turns prompt by prompt, every program is warmed up on its own shapes
first, and answers have the same length by construction (no stop token) or, with `--until-end`, end where the model ends
them, as those of users do. Whole requests are timed, prefill included; "decoding alone" leaves prefill out. `--search`
adds draft trees.
"""

import contextlib
import pathlib

import hf
import llama_cpp
from common import begin, parser, prompts, table
from turns import Method, best_of, in_turns, ours

import eagle_jax
from eagle_jax.converters.files import is_gguf
from eagle_jax.loading.folders import folders_of

SEARCH = [
    (n, d, k)
    for k, n, d in ((1, 3, 1), (1, 4, 2), (1, 5, 3), (1, 6, 4), (1, 8, 6), (2, 6, 2), (2, 6, 3), (2, 8, 4), (3, 8, 3))
]
SEARCH += [(4, 0.5), (6, 0.5), (6, 0.3), (8, 0.5), (8, 0.3), (12, 0.3)]  # chains that end where the head is unsure
PEERS = ("HF generate", "HF", "llama.cpp plain", "llama.cpp")  # columns: against the best whose name begins so


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], new_tokens=128)
    arguments.add_argument("--every", type=int, default=1, help="ask every Nth question only")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--until-end", action="store_true", help="answers end where the model ends them")
    arguments.add_argument("--search", action="store_true", help="time a list of small trees too")
    arguments.add_argument("--no-hf", action="store_true", help="leave HuggingFace out (no PyTorch needed)")
    arguments.add_argument("--draft-model", default=None, help="folder of a small model for assisted generation")
    arguments.add_argument("--llama-cpp", type=pathlib.Path, default=None, help="folder with llama.cpp's llama-server")
    arguments.add_argument(
        "--weights",
        nargs="+",
        default=[None],
        help="of ours: dtypes, or int8, int4, ... as for quantize=; default: as load has them",
    )
    options = arguments.parse_args()
    folder, _ = folders_of(options.target, options.head)
    if options.llama_cpp is not None and not is_gguf(folder):
        raise ValueError(f"llama.cpp reads GGUF files, and the target is {folder}; give a .gguf file as --target")

    until_end, new_tokens = options.until_end, options.new_tokens
    methods: dict[str, Method] = {}
    for weights in options.weights:
        model = loaded(options.target, options.head, weights)
        named = f", {weights}" if weights else ""
        methods[f"eagle_jax plain{named}"] = ours(model, new_tokens, "none", until_end=until_end)
        methods[f"eagle_jax EAGLE, auto{named}"] = ours(model, new_tokens, "eagle", until_end=until_end)
        for tree in SEARCH if options.search else []:
            methods[f"eagle_jax EAGLE, {tree}{named}"] = ours(model, new_tokens, "eagle", tree, until_end=until_end)
    for dtype in () if options.no_hf else ("float32", "bfloat16"):
        draft = None if options.draft_model is None else hf.loaded(options.draft_model, dtype)
        methods |= hf.methods(hf.loaded(folder, dtype, until_end=until_end), new_tokens, dtype, draft)
    asked = prompts(model, options.questions, options.limit, new_tokens)[:: options.every]
    with contextlib.ExitStack() as stack:
        if options.llama_cpp is not None:
            servers = llama_cpp.methods(options.llama_cpp, folder, new_tokens, until_end=until_end)
            methods |= stack.enter_context(servers)
        timed = in_turns(methods, asked, options.repeats)

    against = {name: best for name in PEERS if (best := best_of(timed, name)) is not None}
    rows = []
    for name, one in timed.items():
        plain = timed[name.replace("EAGLE, ", "plain, ").replace("plain, auto", "plain")] if "EAGLE" in name else one
        rows.append(
            (
                name,
                f"{one.speed():.0f}",
                f"{one.length:.2f}",
                *(f"{one.speed() / timed[best].speed():.2f}" for best in against.values()),
                f"{one.speed() / plain.speed():.2f}",
                f"{one.speed('decoding') / plain.speed('decoding'):.2f}",
            )
        )
    columns = ("method", "tokens/s", "tokens a pass", *(f"against {best}" for best in against.values()))
    print(f"{len(asked)} questions")
    print(table((*columns, "against own plain", "decoding alone, against own plain"), rows))


def loaded(target: str | None, head: str | None, weights: str | None) -> eagle_jax.Model:
    """The pair, with weights of a dtype or rounded."""
    if weights is not None and weights.startswith("int"):
        return eagle_jax.load(target, head, quantize=weights)
    return eagle_jax.load(target, head, dtype=weights)


if __name__ == "__main__":
    begin(main)
