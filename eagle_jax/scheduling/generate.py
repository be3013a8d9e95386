"""`generate` and `stream`: prompts in, answers out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

from eagle_jax.chat.prompts import split
from eagle_jax.checks import whole_number
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.loading.model import Model
from eagle_jax.methods.choice import Choice, choose
from eagle_jax.requests.options import options_for, seeds_for, stop_strings
from eagle_jax.requests.processing import Processing
from eagle_jax.requests.request import Request, requests_for, with_form
from eagle_jax.requests.results import Chunk, Result
from eagle_jax.requests.text_streamer import TextStreamer
from eagle_jax.scheduling import offline
from eagle_jax.scheduling.batch_shape import slots_for
from eagle_jax.scheduling.scheduler import Event
from eagle_jax.scheduling.sizes import default_batch_size, padded_batch_size


def generate(
    model: Model,
    prompts: Any,
    *,
    max_new_tokens: int | Sequence[int] = 256,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[str] | None = None,
    drafter: str | Drafter = "auto",
    tree: Any = "auto",
    logprobs: bool = False,
    top_logprobs: int | Sequence[int] = 0,
    num_samples: int = 1,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **processing: Unpack[Processing],
) -> Any:
    """Generates one answer to each prompt. Same seed, same text: with any drafter or none, in any batch.

    Args:
        model: from `load`.
        prompts: text, chat messages (`[{"role": "user", "content": "..."}]`), token ids, or a list of those.
        max_new_tokens: longest answer, in tokens; it also ends where the model's context does. This, what follows
            down to the seed, is one value for all prompts or a list with one for each.
        temperature: 0 is greedy; otherwise divides the logits.
        top_k, top_p, min_p: keep the k most probable tokens, those that hold probability p, those at least this
            probable relative to the most probable one; applied in this order. 0, 1 and 0 are off.
        seed: one for all prompts, or one for each.
        stop: a string, or several, that ends an answer; the text ends before it.
        drafter: "auto" (the model's head, if it has one, or its draft model), "none" (plain decoding), another name of
            `api.DRAFTERS`, or a `Drafter`.
        tree: "auto" (what `eagle-jax tune` found fastest on this machine for as many answers at a time, plain decoding
            included, or else a default tree), "published" (the method's own), "eagle1" (EAGLE-1's 25 + 1 nodes),
            `(nodes, depth, top_k)` as EAGLE-2 counts them (`(60, 7, 10)` is its default: root among the nodes, longest
            drafted path depth + 1), the same with a beam (see `DynamicTree`) or without paths less probable than
            `least`, `(8, 3, 2, 0.03)`, which leaves it as large as each step deserves, `(nodes, least)` for such a
            chain, `(6, 0.8)`, the parents of a tree's nodes, `[-1, 0, 0, 1, ...]`, or a policy of
            `eagle_jax.decoding.policy`.
        logprobs: report each token's log-probability.
        top_logprobs: how many of the likeliest tokens to report at each position, 20 at most; one number for
            all prompts or a list with one for each.
        num_samples: answers to each prompt; the first is the same as with `num_samples=1`.
        batch_size: answers decoded together; when one is done the next prompt takes its place. None chooses.
        progress: called with (answers done, answers in all) after each answer.
        processing: options that depend on the text so far: penalties, bias, bans, minimum lengths, stop tokens; see
            `api.Processing`.

    Returns:
        A `Result`; a list of them for a list of prompts; with `num_samples` > 1, a list of answers for each prompt.

    Raises:
        ValueError, TypeError: one sentence on what came, what was expected, and what to do. Nothing is generated then.

    Example:
        >>> import eagle_jax
        >>> model = eagle_jax.load()
        >>> question = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many apples does he have?"}]
        >>> result = eagle_jax.generate(model, question, max_new_tokens=32)
        >>> result.finish_reason in ("stop", "length")
        True
    """
    items, many = split(prompts)
    num_samples = whole_number("num_samples", num_samples, 1)
    if progress is not None and not callable(progress):
        raise TypeError(
            f"progress={progress!r} cannot be called; expected a function of (answers done, answers in all)"
        )
    requests, events = _begin(
        model,
        items,
        seed=seed,
        stop=stop,
        drafter=drafter,
        tree=tree,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        samples=num_samples,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        **processing,
    )
    results: dict[tuple[int, int], Result] = {}
    for event in events:
        if event.result is not None:
            results[event.request.index, event.request.sample] = event.result
            if progress is not None:
                progress(len(results), len(requests))

    by_item = [[results[index, sample] for sample in range(num_samples)] for index in range(len(items))]
    by_prompt = by_item if num_samples > 1 else [samples[0] for samples in by_item]
    return by_prompt if many else by_prompt[0]


def stream(
    model: Model,
    prompts: Any,
    *,
    max_new_tokens: int | Sequence[int] = 256,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[str] | None = None,
    drafter: str | Drafter = "auto",
    tree: Any = "auto",
    logprobs: bool = False,
    top_logprobs: int | Sequence[int] = 0,
    batch_size: int | None = None,
    steps: int = 1,
    **processing: Unpack[Processing],
) -> Iterator[Chunk]:
    """Generates as `generate` does and yields the text as it comes: whole characters, the same text.

    Args:
        steps: steps between two polls of the answers.

    Yields:
        `Chunk`s: `index` is the number of the prompt that is answered; the last one of each carries the `Result`.
    """
    items, _ = split(prompts)
    steps = whole_number("steps", steps, 1)
    requests, events = _begin(
        model,
        items,
        seed=seed,
        stop=stop,
        drafter=drafter,
        tree=tree,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        batch_size=batch_size,
        steps=steps,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        **processing,
    )
    streamers = [
        TextStreamer(request.index, model.tokenizer, request.prompt, request.options.stop) for request in requests
    ]
    return (chunk for event in events for chunk in streamers[event.request.index].chunks(event.output, event.result))


def _begin(
    model: Model,
    prompts: list[Any],
    *,
    seed: int | Sequence[int],
    stop: str | Sequence[str] | None,
    drafter: str | Drafter,
    tree: Any,
    batch_size: int | None,
    samples: int = 1,
    steps: int | None = None,
    **options: Any,
) -> tuple[list[Request], Iterator[Event]]:
    """Checks everything, and returns the requests with the events of their answers, which nothing computes yet."""
    stops = stop_strings(stop, model.tokenizer)
    by_prompt = options_for(len(prompts), stop=stops, **options)
    rows = default_batch_size(model) if batch_size is None else whole_number("batch_size", batch_size, 1)
    choice = choose(model, drafter, tree)
    unformed = requests_for(model, prompts, by_prompt, seeds_for(seed, len(prompts)), samples)
    requests = [with_form(model, request) for request in unformed]

    def drafter_of(first: Sequence[Request]) -> Drafter:
        return drafter_for_requests(choice, first)

    return requests, offline.run(model, requests, rows, drafter_of, steps=steps)


def drafter_for_requests(choice: Choice, requests: Sequence[Request]) -> Drafter:
    """Returns the chosen drafter, with a tree that suits a batch of these requests."""
    model = choice.model
    prompts = sum(len(request.prompt) for request in requests)
    ratio = prompts / sum(request.options.max_new_tokens for request in requests)
    return choice.for_batch(padded_batch_size(model, len(requests)), slots_for(model, Plain(), requests), ratio)
