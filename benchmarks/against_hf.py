"""How fast are plain decoding and EAGLE beside HuggingFace `generate`: same weights, same prompts, batch 1, greedy?

HuggingFace runs in float32 and bfloat16; the better one counts. Methods take turns prompt by prompt, every program is
warmed up on its own shapes first, and answers have the same length by construction (no stop token). Whole requests are
timed, prefill included; "decoding alone" leaves prefill out. `--search` adds draft trees.
"""

import dataclasses
import time
from collections.abc import Callable

from common import parser, prompts, report, table

import eagle_jax
from eagle_jax.api.model import PAIR

SEARCH = [
    (n, d, k)
    for k, n, d in ((1, 3, 1), (1, 4, 2), (1, 5, 3), (1, 6, 4), (1, 8, 6), (2, 6, 2), (2, 6, 3), (2, 8, 4), (3, 8, 3))
]


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], new_tokens=128)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--search", action="store_true", help="time a list of small trees too")
    arguments.add_argument("--no-hf", action="store_true", help="leave HuggingFace out (no PyTorch needed)")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head)
    asked = prompts(model, options.questions, options.limit or 8, options.new_tokens)

    methods: dict[str, Callable[[list[int]], Request]] = {}
    if not options.no_hf:
        for dtype in ("float32", "bfloat16"):
            methods[f"HF generate, {dtype}"] = hf(options.target or PAIR / "target", dtype, options.new_tokens)
    methods["eagle_jax plain"] = ours(model, options.new_tokens, "none", "auto")
    methods["eagle_jax EAGLE, auto"] = ours(model, options.new_tokens, "eagle", "auto")
    for tree in SEARCH if options.search else []:
        methods[f"eagle_jax EAGLE, {tree}"] = ours(model, options.new_tokens, "eagle", tree)

    for run in methods.values():
        for prompt in asked:
            run(prompt)
    runs: dict[str, list[list[Request]]] = {name: [[] for _ in asked] for name in methods}
    for repeat in range(options.repeats):
        for index, prompt in enumerate(asked):
            for name, run in methods.items():
                runs[name][index].append(run(prompt))
        report(repeat + 1, options.repeats)

    whole = {name: speed(requests, "seconds") for name, requests in runs.items()}
    decoding = {name: speed(requests, "decoding") for name, requests in runs.items()}
    plain = "eagle_jax plain"
    best_hf = max((whole[name] for name in methods if name.startswith("HF")), default=float("nan"))
    rows = [
        (
            name,
            f"{whole[name]:.0f}",
            f"{sum(r[0].length for r in runs[name]) / len(asked):.2f}",
            f"{whole[name] / best_hf:.2f}",
            f"{whole[name] / whole[plain]:.2f}",
            f"{decoding[name] / decoding[plain]:.2f}",
        )
        for name in methods
    ]
    columns = ("method", "tokens/s", "tokens a pass", "against HF", "against plain", "decoding alone, against plain")
    print(table(columns, rows))


@dataclasses.dataclass(frozen=True)
class Request:
    """One request: its tokens, tokens a pass, seconds in all and of them decoding (nan where that is not known)."""

    tokens: int
    length: float
    seconds: float
    decoding: float


def speed(requests: list[list[Request]], clock: str) -> float:
    """Tokens per second over all prompts, each by its fastest repeat."""
    return sum(repeats[0].tokens for repeats in requests) / sum(
        min(getattr(request, clock) for request in repeats) for repeats in requests
    )


def ours(model: eagle_jax.Model, new_tokens: int, drafter: str, tree: object) -> Callable:
    """A request through our `generate`, stop tokens left out."""
    endless = eagle_jax.Model(target=model.target, head=model.head, tokenizer=None, stop_ids=(), context=model.context)

    def run(prompt: list[int]) -> Request:
        start = time.perf_counter()
        result = eagle_jax.generate(endless, prompt, max_new_tokens=new_tokens, drafter=drafter, tree=tree)
        spent = time.perf_counter() - start - result.stats.compile_seconds
        stats = result.stats
        return Request(len(result.token_ids), stats.mean_accepted_length, spent, stats.decode_seconds)

    return run


def hf(folder, dtype: str, new_tokens: int) -> Callable:
    """The same through transformers' `generate`."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None

    def run(prompt: list[int]) -> Request:
        ids = torch.tensor([prompt])
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
            )
        return Request(out.shape[1] - len(prompt), 1.0, time.perf_counter() - start, float("nan"))

    return run


if __name__ == "__main__":
    main()
