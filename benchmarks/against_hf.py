"""How fast are plain decoding and EAGLE beside HuggingFace `generate`: same weights, same prompts, batch 1, greedy?

HuggingFace runs in float32 and bfloat16; the better one counts. Methods take turns prompt by prompt, every program is
warmed up on its own shapes first, and answers have the same length by construction (no stop token). `--search` adds
draft trees.
"""

import time
from collections.abc import Callable

from common import parser, prompts, report, table

import eagle_jax
from eagle_jax.api.model import PAIR

SEARCH = [
    (n, d, k)
    for k, n, d in ((1, 4, 2), (1, 5, 3), (1, 6, 4), (1, 7, 5), (1, 8, 6), (2, 6, 2), (2, 8, 3), (3, 8, 3), (4, 12, 4))
]


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], new_tokens=128)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--search", action="store_true", help="time a list of small trees too")
    arguments.add_argument("--no-hf", action="store_true", help="leave HuggingFace out (no PyTorch needed)")
    options = arguments.parse_args()
    model = eagle_jax.load(options.target, options.head)
    asked = prompts(model, options.questions, options.limit or 8, options.new_tokens)

    methods: dict[str, Callable[[list[int]], tuple[int, float, float]]] = {}
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
    seconds = {name: [float("inf")] * len(asked) for name in methods}
    tokens, accepted = dict.fromkeys(methods, 0), dict.fromkeys(methods, 0.0)
    for repeat in range(options.repeats):
        for index, prompt in enumerate(asked):
            for name, run in methods.items():
                count, length, spent = run(prompt)
                seconds[name][index] = min(seconds[name][index], spent)
                tokens[name] += count
                accepted[name] += length * count
        report(repeat + 1, options.repeats)

    speed = {name: tokens[name] / options.repeats / sum(seconds[name]) for name in methods}
    plain = speed["eagle_jax plain"]
    best_hf = max((speed[name] for name in methods if name.startswith("HF")), default=float("nan"))
    rows = [
        (
            name,
            f"{speed[name]:.0f}",
            f"{accepted[name] / tokens[name]:.2f}",
            f"{speed[name] / best_hf:.2f}",
            f"{speed[name] / plain:.2f}",
        )
        for name in methods
    ]
    print(table(("method", "tokens/s", "tokens a pass", "against HF", "against plain"), rows))


def ours(model: eagle_jax.Model, new_tokens: int, drafter: str, tree: object) -> Callable:
    """Tokens, tokens a pass and seconds of one request, prefill included."""
    endless = eagle_jax.Model(target=model.target, head=model.head, tokenizer=None, stop_ids=(), context=model.context)

    def run(prompt: list[int]) -> tuple[int, float, float]:
        start = time.perf_counter()
        result = eagle_jax.generate(endless, prompt, max_new_tokens=new_tokens, drafter=drafter, tree=tree)
        spent = time.perf_counter() - start - result.stats.compile_seconds
        return len(result.token_ids), result.stats.mean_accepted_length, spent

    return run


def hf(folder, dtype: str, new_tokens: int) -> Callable:
    """The same through transformers' `generate`."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None

    def run(prompt: list[int]) -> tuple[int, float, float]:
        ids = torch.tensor([prompt])
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
            )
        return out.shape[1] - len(prompt), 1.0, time.perf_counter() - start

    return run


if __name__ == "__main__":
    main()
