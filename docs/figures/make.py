"""Draws the documentation's figures from one real answer of SmolLM2-135M-Instruct, drafted by its EAGLE-3 head.

    python docs/figures/make.py

`answer.svg` is the whole answer, step by step; `tree.svg` the draft tree of one of its steps, and `mask.svg` what the
nodes of that tree see.
"""

import pathlib
from collections.abc import Iterator, Sequence

import eagle_jax
from eagle_jax import api
from eagle_jax.evaluation import drawing
from eagle_jax.evaluation.drawing import WIDTH, Svg

HERE = pathlib.Path(__file__).parent
QUESTION = "What is photosynthesis? Answer in two sentences."
TREE = (14, 4, 3)
MAX_NEW_TOKENS = 96
CHARACTER, LINE, MARGIN = 8.4, 32, 16  # width of a character, height of a line, space at the sides
COMMITTED = 7  # tokens of the cache that the picture of the mask shows


def main() -> None:
    model = eagle_jax.load("smollm2-135m-instruct", dtype="float32")
    prompt = [{"role": "user", "content": QUESTION}]
    asked = dict(max_new_tokens=MAX_NEW_TOKENS, tree=TREE)
    result = eagle_jax.generate(model, prompt, **asked)
    steps = api.trace(model, prompt, steps=result.stats.steps, **asked)
    read = [sum(result.stats.accepted_lengths[:number]) for number in range(len(steps))]  # tokens in the cache before
    number = max((n for n, count in enumerate(read) if count >= COMMITTED), key=lambda n: len(steps[n].accepted))
    for name, svg in {
        "answer": answer(model.tokenizer, result),
        "tree": tree(model.tokenizer, steps[number]),
        "mask": mask(model.tokenizer, steps[number], result.token_ids[: read[number]]),
    }.items():
        (HERE / f"{name}.svg").write_text(drawing.standalone(svg) + "\n", encoding="utf-8")
    tokens, steps = len(result.token_ids), result.stats.steps
    print(f"{result.text!r}: {tokens} tokens in {steps} steps; the tree is of step {number + 1}")


def answer(tokenizer, result: eagle_jax.Result) -> str:
    """The answer as its steps committed it: drafted tokens filled, those that the target drew itself dashed."""
    placed = list(_lines(_passes(tokenizer, result)))
    below = 26 + LINE * (2 + max(line for line, *_ in placed))
    tokens, steps = len(result.token_ids), result.stats.steps
    svg = Svg(below + 48, f"An answer of SmolLM2-135M-Instruct: {tokens} tokens in {steps} steps")
    svg.text(MARGIN, 26, QUESTION, "faint")
    for line, x, text, width, look, number in placed:
        y = 26 + LINE * (line + 1)
        title = f"step {number}: {'guessed by the head, and drawn' if look == 'taken' else 'drawn'} by the model"
        svg.box(x, y - 15, width, 21, f"node {look}", title, round_=4)
        _fixed(svg, x + 3, y, text, look)
    svg.text(MARGIN, below + 6, f"{tokens} tokens in {steps} steps of draft and verification, after prefill.")
    for x, look, meaning in (
        (MARGIN, "taken", "drafted by the head, and what the model draws"),
        (WIDTH / 2 + 20, "drawn", "drawn by the model after them: the end of a step"),
    ):
        svg.box(x, below + 20, 14, 14, f"node {look}", meaning, round_=4)
        svg.text(x + 22, below + 32, meaning, "faint")
    return str(svg)


def _passes(tokenizer, result: eagle_jax.Result) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Number of each pass, and its tokens' texts with their look; pass 0 is the prompt's, with the first token."""
    lengths, start = [1, *result.stats.accepted_lengths], 0
    for number, length in enumerate(lengths):
        ids = result.token_ids[start : start + length]
        looks = ["taken"] * (length - 1) + ["drawn"]
        yield number, [(tokenizer.decode([token]), look) for token, look in zip(ids, looks, strict=False)]
        start += length


def _lines(passes) -> Iterator[tuple[int, float, str, float, str, int]]:
    """Line, place, text, width and look of every token, and the number of its pass."""
    line, x = 0, float(MARGIN)
    for number, tokens in passes:
        for text, look in tokens:
            shown = text.strip() or text.replace("\n", "⏎").replace(" ", "␣")
            width = len(shown) * CHARACTER + 6
            if x + width > WIDTH - MARGIN:
                line, x = line + 1, float(MARGIN)
            yield line, x, shown, width, look, number
            x += width + 2
        x += 9


def tree(tokenizer, step: api.Step) -> str:
    """The draft tree of a step and the path that was committed."""
    parents = [parent if valid else -2 for parent, valid in zip(step.parents, step.valid, strict=True)]
    texts = [tokenizer.decode([token]) for token in step.tokens]
    drawn = tokenizer.decode([step.draws[step.accepted[-1]]])
    return drawing.tree(parents, texts, step.accepted, drawn, "A draft tree and its accepted path")


def mask(tokenizer, step: api.Step, committed: Sequence[int]) -> str:
    """What each node of a tree sees: all that is committed, its ancestors, and itself.

    Args:
        committed: tokens of the answer that are in the cache.
    """
    nodes = [node for node, valid in enumerate(step.valid) if valid]
    before = [tokenizer.decode([token]) for token in committed[-COMMITTED:]]
    left, top, wide, cell = 130, 52, 62, 19
    right = left + wide * len(before) + 14
    svg = Svg(top + cell * len(nodes) + 8, "What each node of the tree sees", width=right + cell * len(nodes) + 20)
    svg.text(left, 18, "committed, in the cache", "faint")
    svg.text(right, 18, "the tree, beside it", "faint")
    for column, text in enumerate(before):
        svg.text(left + wide * (column + 0.5), 42, _short(text), "small", "middle")
    for column, node in enumerate(nodes):
        svg.text(right + cell * (column + 0.5), 42, node, "small faint", "middle")
    for row, node in enumerate(nodes):
        y = top + cell * row
        text = tokenizer.decode([step.tokens[node]])
        svg.text(left - 38, y + 13, _short(text), "small", "end")
        svg.text(left - 12, y + 13, node, "small faint", "end")
        for column, known in enumerate(before):
            svg.box(left + wide * column + 1, y + 1, wide - 2, cell - 2, "c7", f"{text!r} sees {known!r}", opacity=0.35)
        seen = _line_of(step, node)
        for column, other in enumerate(nodes):
            look, title = ("c2", f"node {node} sees node {other}") if other in seen else ("node", "not seen")
            svg.box(right + cell * column + 1, y + 1, cell - 2, cell - 2, look, title)
    return str(svg)


def _line_of(step: api.Step, node: int) -> set[int]:
    """A node, its parent, and so on to the root."""
    line = set()
    while node >= 0:
        line.add(node)
        node = step.parents[node]
    return line


def _short(text: str) -> str:
    shown = text.replace("\n", "⏎").replace(" ", "␣")
    return shown if len(shown) <= 9 else shown[:8] + "…"


def _fixed(svg: Svg, x: float, y: float, text: str, look: str) -> None:
    """Text as wide as it was planned for, whatever font there is."""
    svg.text(x, y, text, f"token {look}")
    svg.elements[-1] = svg.elements[-1].replace("<text ", f'<text textLength="{len(text) * CHARACTER:.1f}" ', 1)


if __name__ == "__main__":
    main()
