"""Are greedy token ids of a GGUF file whose numbers are kept those of its floats, and those of llama.cpp?

The floats are what the gguf library expands in float32. llama.cpp rounds activations to 8 bits; so does our CPU backend
with weights of 4 bits, unless EAGLE_JAX_ACTIVATIONS is int16, or EAGLE_JAX_OPS is xla. Where answers part, the table
tells how far apart the two best logits of the floats are there: nothing but a draw should part them.

    python -m benchmarks.peers.gguf_ids --files q4_k_m.gguf q6_k.gguf --questions QUESTIONS.jsonl --limit 20 \\
        --llama-cpp BINARIES
"""

import pathlib
import statistics
import tempfile
from collections.abc import Iterator

import eagle_jax
from benchmarks.common.command import begin, parser, prompts
from benchmarks.common.tables import show
from benchmarks.peers import llama_cpp
from eagle_jax import api

Ids = list[list[int]]


def main() -> None:
    arguments = parser(__doc__, new_tokens=64)
    arguments.add_argument("--files", type=pathlib.Path, nargs="+", required=True, help="GGUF files")
    arguments.add_argument("--llama-cpp", type=pathlib.Path, help="folder that holds llama-server")
    options = arguments.parse_args()
    rows = [row for file in options.files for row in _rows(file, options)]
    columns = ("file", "answers", "same", "tokens until they part", "logits apart: median", "largest")
    show("Greedy token ids in float32", columns, rows)


def _rows(file: pathlib.Path, options) -> Iterator[tuple[object, ...]]:
    kept = eagle_jax.load(file, dtype="float32")
    asked = prompts(kept, options.questions, options.limit, options.new_tokens, options.every)
    answers = {"kept": _answers(kept, asked, options.new_tokens)}
    del kept
    with tempfile.TemporaryDirectory() as folder:
        api.convert_gguf(file, folder, dtype="float32")
        floats = eagle_jax.load(folder, dtype="float32")
    answers["floats"] = _answers(floats, asked, options.new_tokens)
    if options.llama_cpp is not None:
        modes = llama_cpp.methods(options.llama_cpp, file, options.new_tokens, until_end=True, modes=["none"])
        with modes as methods:
            [run] = methods.values()
            answers["llama.cpp"] = [run(prompt).token_ids for prompt in asked]
    names = list(answers)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            yield file.name, f"{one} and {other}", *_compared(floats, asked, answers[one], answers[other])


def _answers(model: eagle_jax.Model, asked: Ids, new_tokens: int) -> Ids:
    results = eagle_jax.generate(model, asked, max_new_tokens=new_tokens, temperature=0.0, drafter="none")
    return [result.token_ids for result in results]


def _compared(floats: eagle_jax.Model, asked: Ids, ours: Ids, theirs: Ids) -> tuple[str, str, str, str]:
    """How many answers are the same, tokens before the others part, and how near a draw it was there."""
    lengths, gaps = [], []
    for prompt, one, other in zip(asked, ours, theirs, strict=True):
        place = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
        if one[place : place + 1] != other[place : place + 1]:
            (_, high), (_, low) = api.closest_draws(floats, [*prompt, *one[:place]])
            lengths.append(place)
            gaps.append(high - low)
    same = f"{len(asked) - len(gaps)} of {len(asked)}"
    if not gaps:
        return same, "", "", ""
    return same, f"{statistics.mean(lengths):.0f}", f"{statistics.median(gaps):.2g}", f"{max(gaps):.2g}"


if __name__ == "__main__":
    begin(main)
