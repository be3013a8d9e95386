"""Times of step parts by method, and an example of a draft tree, for the report."""

from collections.abc import Callable, Sequence
from typing import Any

from eagle_jax import api
from eagle_jax.evaluation.comparison import Method
from eagle_jax.evaluation.prompts import Prompt, Prompter

STEPS = 12


def take_traces(
    prompter: Prompter,
    prompt: Prompt,
    methods: Sequence[Method],
    *,
    progress: Callable[[int, int], None],
    **sampling: Any,
) -> dict[str, Any]:
    """Times a step of each method in the middle of the answer to `prompt`, and records a tree of the largest method.

    Args:
        progress: called with (methods timed, number of methods).
        sampling: temperature, top_k, top_p, min_p and seed, as in `generate`.

    Returns:
        `{"parts": {method: {"draft", "verify", "rest", "step"}}, "tree": {...}}`, times in seconds; the tree has the
        longest accepted path of the first steps, and is missing if no method drafts.
    """
    sampling |= dict(max_new_tokens=prompter.max_new_tokens)
    parts = {}
    for done, method in enumerate(methods, start=1):
        model = method.model or prompter.model
        timed = api.time_parts(model, prompt.ids, drafter=method.drafter, tree=method.tree, **sampling)
        parts[method.name] = {
            "draft": timed.draft,
            "verify": timed.verify,
            "rest": timed.rest,
            "step": timed.step,
        }
        progress(done, len(methods))
    widest = max(methods, key=lambda method: _nodes(prompter, method))
    if _nodes(prompter, widest) == 1:
        return {"parts": parts}
    model = widest.model or prompter.model
    steps = api.trace(model, prompt.ids, steps=STEPS, drafter=widest.drafter, tree=widest.tree, **sampling)
    return {"parts": parts} | ({"tree": _tree(model, widest.name, steps)} if steps else {})


def _nodes(prompter: Prompter, method: Method) -> int:
    return api.tree_shape(method.model or prompter.model, method.drafter, method.tree).nodes


def _tree(model: api.Model, method: str, steps: Sequence[api.Step]) -> dict[str, Any]:
    number, step = max(enumerate(steps, start=1), key=lambda pair: len(pair[1].accepted))
    return {
        "method": method,
        "step": number,
        "parents": [parent if valid else -2 for parent, valid in zip(step.parents, step.valid, strict=True)],
        "texts": [model.tokenizer.decode([max(token, 0)]) for token in step.tokens],  # padding may be -1
        "accepted": step.accepted,
        "drawn": model.tokenizer.decode([step.draws[step.accepted[-1]]]),
    }
