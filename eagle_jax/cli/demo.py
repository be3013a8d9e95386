"""`eagle-jax demo`: the shipped pair at work, then plain decoding against EAGLE in numbers."""

import jax

import eagle_jax
from eagle_jax import api
from eagle_jax.cli.console import counting, load, one_sentence, out, stats_line, write
from eagle_jax.evaluation import EAGLE, PLAIN, Conversation, Figures, Prompter, Question, compare, figures

PROMPTS = (
    "Tim works 6 hours a day and earns $12 an hour. How much does he earn in a week of 5 days?",
    "Sam buys 3 packs of pencils. Each pack has 12 pencils. How many pencils does he have?",
    "A shirt costs $20. A hat costs half as much. How much do a shirt and a hat cost together?",
    "Sara has 10 cookies. She eats 3 of them. How many cookies are left?",
)
SHOWN = 2
MAX_NEW_TOKENS = 128


@one_sentence
def demo() -> None:
    """Show the shipped pair at work: text as it streams, then its speed beside plain decoding.

    Everything is compiled before it is timed; compiled programs are kept, so the second demo starts at once.
    """
    model = load(None, None, None)  # before anything asks for devices: it chooses how JAX starts
    device = jax.devices()[0]
    out.print(f"[bold]eagle_jax {eagle_jax.__version__}[/bold] on {device.device_kind} ({device.platform})")
    size = sum(leaf.size for leaf in jax.tree.leaves(model.target)) / 1e6
    out.print(f"A toy Llama of {size:.0f} million parameters: it has the form of an answer, its sums are often wrong.")
    out.print("Compiling for this machine; the next run finds it done ...", style="dim")
    for _ in _stream(model, PROMPTS[0]):
        pass
    for prompt in PROMPTS[:SHOWN]:
        out.print(f"\n[bold]> {prompt}[/bold]")
        for chunk in _stream(model, prompt):
            write(chunk.text)
            if chunk.result is not None:
                out.print()
                out.print(stats_line(chunk.result), style="dim", markup=False)
    out.print("\nNow timed: the same requests, plain decoding and EAGLE in turn.")
    _report(*_timed(model))


def _stream(model: api.Model, prompt: str):
    return api.stream(model, [{"role": "user", "content": prompt}], max_new_tokens=MAX_NEW_TOKENS)


def _timed(model: api.Model) -> tuple[Figures, Figures]:
    """The figures of plain decoding and of EAGLE."""
    questions = [Question(number, "demo", (prompt,)) for number, prompt in enumerate(PROMPTS)]
    prompter = Prompter(model, chat=True, max_new_tokens=MAX_NEW_TOKENS)
    talks: dict[str, list[Conversation]] = {PLAIN.name: [], EAGLE.name: []}
    with counting("Timing") as progress:
        for talk in compare(prompter, questions, (PLAIN, EAGLE), progress=progress):
            talks[talk.method].append(talk)
    plain = talks[PLAIN.name]
    return figures(plain, plain), figures(talks[EAGLE.name], plain)


def _report(plain: Figures, eagle: Figures) -> None:
    same = "yes" if eagle.identical == eagle.answers else "NO"
    rows = (
        ("plain decoding", f"{plain.tokens_per_second:.0f} tokens/s"),
        ("EAGLE", f"{eagle.tokens_per_second:.0f} tokens/s, {eagle.speedup:.2f} times as fast"),
        ("mean accepted length", f"{eagle.mean_accepted_length:.2f} tokens a pass of the model"),
        ("identical texts", f"{same} ({eagle.identical} of {eagle.answers})"),
    )
    for name, value in rows:
        out.print(f"  {name:<22}[bold]{value}[/bold]")
