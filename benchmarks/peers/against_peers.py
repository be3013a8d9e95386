"""How fast are plain decoding and EAGLE beside what people use: same model, same prompts, batch 1, greedy, all cores?

HuggingFace `generate` runs in float32 and bfloat16, plainly, with prompt lookup and, given `--draft-model`, assisted by
a smaller model. llama.cpp's server runs, given `--llama-cpp` and a target that is a GGUF file, plainly and with each of
its modes that draft from the text. The original PyTorch EAGLE runs, given `--eagle`, with the tree (60, 7, 10).
`--shape` takes a synthetic pair, whose arrays HuggingFace shares.

Methods take turns prompt by prompt, every program is warmed up on its own shapes first, and answers have the same
length by construction (no stop token) or, with `--until-end`, end where the model ends them, as those of users do.
Whole requests are timed, prefill included; "decoding alone" leaves prefill out. `--search` adds draft trees.

    python -m benchmarks.peers.against_peers --questions QUESTIONS.jsonl
    python -m benchmarks.peers.against_peers --shape small --no-hf --eagle CHECKOUT

`--eagle` is a checkout of https://github.com/SafeAILab/EAGLE. Its code needs PyTorch, transformers 4.53 (5 and newer
lack what it imports) and safetensors; give a Python that has them as --python, or install them into a folder with
`pip install --no-deps --target FOLDER transformers==4.53.1 'tokenizers<0.22' 'huggingface_hub<1'` and give it as
--packages. It knows no draft vocabulary for EAGLE-1 heads.
"""

import contextlib
import pathlib
import sys
from collections.abc import Mapping

import eagle_jax
from benchmarks.common.chart import PUBLISHED
from benchmarks.common.command import begin, parser, prompts
from benchmarks.common.synthetic import NAMES, Shape, make
from benchmarks.common.tables import show
from benchmarks.common.turns import Method, Timed, in_turns, ours
from benchmarks.peers import eagle_original, hf, llama_cpp
from eagle_jax.converters.files import is_gguf
from eagle_jax.loading.folders import folders_of

SEARCH = [(3, 1, 1), (4, 2, 1), (5, 3, 1), (6, 4, 1), (8, 6, 1), (6, 2, 2), (6, 3, 2), (8, 4, 2), (8, 3, 3)]
SEARCH += [
    (6, 0.15),
    (8, 0.15),
    (4, 2, 2, 0.1),
    (6, 3, 2, 0.05),
    (8, 3, 2, 0.03),
    (8, 5, 2, 0.1),
]  # as large as it pays
PUBLISHED_TREE = (60, 7, 10)
DTYPES = ("float32", "bfloat16", "float16")
# columns: against the best whose name begins so
PEERS = ("HF generate", "HF", "llama.cpp plain", "llama.cpp", "original EAGLE, plain", "original EAGLE")


def main() -> None:
    own = parser(__doc__, new_tokens=128, questions=False)
    own.add_argument("--shape", choices=NAMES, help="a synthetic pair, with prompts of its own")
    own.add_argument("--repeats", type=int, default=3, help="%(default)s")
    own.add_argument("--until-end", action="store_true", help="answers end where the model ends them")
    own.add_argument("--search", action="store_true", help="time a list of small trees too")
    own.add_argument("--no-hf", action="store_true", help="leave HuggingFace out (no PyTorch needed)")
    own.add_argument("--draft-model", help="folder of a small model for assisted generation")
    own.add_argument("--llama-cpp", type=pathlib.Path, help="folder with llama-server, or a Python with xllamacpp")
    own.add_argument("--eagle", type=pathlib.Path, help="checkout of the original EAGLE")
    own.add_argument("--python", default=sys.executable, help="that runs it (default: this one)")
    own.add_argument("--packages", help="folder of packages that it finds before all others")
    own.add_argument(
        "--weights",
        nargs="+",
        default=[None],
        help="of ours: a dtype, quantize, or both, as float32+requantize:int8 (default: as load has them)",
    )
    options = own.parse_args()
    until_end, new_tokens = options.until_end, options.new_tokens
    folder, _ = folders_of(options.target, options.head)
    if options.llama_cpp is not None and not is_gguf(folder):
        raise ValueError(f"llama.cpp reads GGUF files, and the target is {folder}; give a .gguf file as --target")
    if options.shape is None and options.questions is None:
        raise ValueError("there is nothing to ask: give --questions with a file of questions, or --shape")

    methods: dict[str, Method] = {}
    trees = ["auto", *(SEARCH if options.search else []), *([PUBLISHED_TREE] if options.eagle is not None else [])]
    for weights in options.weights:
        if options.shape is not None:
            pair = make(Shape.of(options.shape), PUBLISHED, dtype=weights or "bfloat16")
            model = pair.model
            asked = [pair.chart.prompt(64, seed) for seed in range(options.limit or 2)]
        else:
            parts = [] if weights is None else weights.split("+")
            how = {"dtype" if part in DTYPES else "quantize": part for part in parts}
            model = eagle_jax.load(options.target, options.head, **how)
            asked = prompts(model, options.questions, options.limit, new_tokens, options.every)
        named = f", {weights}" if weights else ""
        methods[f"eagle_jax plain{named}"] = ours(model, new_tokens, "none", until_end=until_end)
        for tree in trees:
            methods[f"eagle_jax EAGLE, {tree}{named}"] = ours(model, new_tokens, "eagle", tree, until_end=until_end)
    if options.shape is not None and not options.no_hf:
        methods |= hf.methods(hf.shared(model.target), new_tokens, model.dtype)
    elif not options.no_hf:
        for dtype in ("float32", "bfloat16"):
            draft = None if options.draft_model is None else hf.loaded(options.draft_model, dtype)
            methods |= hf.methods(hf.loaded(folder, dtype, until_end=until_end), new_tokens, dtype, draft)
    with contextlib.ExitStack() as stack:
        if options.llama_cpp is not None:
            servers = llama_cpp.methods(options.llama_cpp, folder, new_tokens, until_end=until_end)
            methods |= stack.enter_context(servers)
        if options.eagle is not None:
            how = dict(python=options.python, packages=options.packages)
            original = eagle_original.methods(options.eagle, model, new_tokens, PUBLISHED_TREE, **how)
            methods |= stack.enter_context(original)
        timed = in_turns(methods, asked, options.repeats)

    show(f"{len(asked)} questions", *compared(timed))


def compared(timed: Mapping[str, Timed]) -> tuple[list[str], list[list[object]]]:
    """Columns and rows: each method against the best of every peer, and against its own plain decoding.

    Texts of ours are compared with plain decoding of the same weights, those of peers with that of our first ones.
    """
    first = plain = next(iter(timed.values()))
    against = {name: timed[best] for name in PEERS if (best := best_of(timed, name)) is not None}
    rows: list[list[object]] = []
    for name, one in timed.items():
        plain = one if name.startswith("eagle_jax plain") else plain
        own_plain, like = (plain, plain) if name.startswith("eagle_jax") else (one, first)
        ratios = [one.speed() / other.speed() for other in (*against.values(), own_plain)]
        same = sum(one == other for one, other in zip(one.texts, like.texts, strict=True))
        decoding = one.speed("decoding") / own_plain.speed("decoding")
        rows.append([name, one.speed(), one.accepted, *ratios, decoding, f"{same} of {len(one.texts)}"])
    columns = ["method", "tokens/s", "mean acceptance length", *(f"against {name}" for name in against)]
    return [*columns, "against own plain", "decoding alone, against own plain", "texts as eagle_jax plain"], rows


def best_of(timed: Mapping[str, Timed], beginning: str) -> str | None:
    """The fastest method whose name begins so; None if there is none."""
    named = [name for name in timed if name.startswith(beginning)]
    return max(named, key=lambda name: timed[name].speed(), default=None)


if __name__ == "__main__":
    begin(main)
