"""`eagle-jax demo`: the shipped pair at work, then plain decoding against EAGLE in numbers."""

import jax

import eagle_jax
from eagle_jax import api
from eagle_jax.cli.console import load, one_sentence, out, progress_bar, stats_line, write
from eagle_jax.evaluation import Question, Summary, compare, summarize

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
    device = jax.devices()[0]
    out.print(f"[bold]eagle_jax {eagle_jax.__version__}[/bold] on {device.device_kind} ({device.platform})")
    model = load(None, None, None)
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
    _report(_timed(model))


def _stream(model: api.Model, prompt: str):
    return api.stream(model, [{"role": "user", "content": prompt}], max_new_tokens=MAX_NEW_TOKENS)


def _timed(model: api.Model) -> Summary:
    questions = [Question(number, "demo", (prompt,)) for number, prompt in enumerate(PROMPTS)]
    with progress_bar("Timing") as bar:
        task = bar.add_task("", total=len(questions))
        comparison = compare(
            model,
            questions,
            max_new_tokens=MAX_NEW_TOKENS,
            progress=lambda done, total: bar.update(task, completed=done),
        )
    return summarize(comparison.records)[-1]


def _report(summary: Summary) -> None:
    same = "yes" if summary.identical == summary.answers else "NO"
    rows = (
        ("plain decoding", f"{summary.plain_tokens_per_second:.0f} tokens/s"),
        ("EAGLE", f"{summary.eagle_tokens_per_second:.0f} tokens/s, {summary.speedup:.2f} times as fast"),
        ("mean accepted length", f"{summary.mean_accepted_length:.2f} tokens a pass of the model"),
        ("identical texts", f"{same} ({summary.identical} of {summary.answers})"),
    )
    for name, value in rows:
        out.print(f"  {name:<22}[bold]{value}[/bold]")
