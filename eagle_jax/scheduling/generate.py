"""`generate` and `stream`: prompts in, answers out."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from eagle_jax.checks import whole
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.loading.model import Model
from eagle_jax.scheduling.batch import Ask, Batch, slots_for
from eagle_jax.scheduling.options import Options, options_for, seeds_for, stop_strings
from eagle_jax.scheduling.queue import answers
from eagle_jax.scheduling.results import Chunk, Result
from eagle_jax.scheduling.text_streamer import Telling
from eagle_jax.text.prompts import TooLong, encode, split
from eagle_jax.tuning.methods import drafter_for
from eagle_jax.tuning.sizes import rows_for, rows_of


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
    num_samples: int = 1,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
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
            included, or else by rule), "published" (the method's own), "eagle1" (EAGLE-1's 25 + 1 nodes),
            `(nodes, depth, top_k)` as EAGLE-2 counts them (`(60, 7, 10)` is its default: root among the nodes, longest
            drafted path depth + 1), `(nodes, least)` for a chain of at most so many nodes that ends where its path
            becomes less probable than `least`, `(6, 0.8)`, or the parents of a tree's nodes, `[-1, 0, 0, 1, ...]`.
        logprobs: report each token's log-probability.
        num_samples: answers to each prompt; the first is the one that a single answer would be.
        batch_size: answers decoded together; when one is done the next prompt takes its place. None chooses.
        progress: called with (answers done, answers in all) after each answer.

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
    stops = stop_strings(stop, model.tokenizer)
    values = dict(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    options = options_for(len(items), stop=stops, logprobs=logprobs, **values)
    num_samples = whole("num_samples", num_samples, 1)
    if progress is not None and not callable(progress):
        raise TypeError(
            f"progress={progress!r} cannot be called; expected a function of (answers done, answers in all)"
        )
    rows = rows_of(model) if batch_size is None else whole("batch_size", batch_size, 1)
    drafter_for(model, drafter, tree)  # refuses what is not known before anything else is done
    asks = asks_for(model, items, options, seeds_for(seed, len(items)), num_samples)

    results: dict[tuple[int, int], Result] = {}
    for ask, result in answers(model, lambda asks: drafter_of(model, drafter, tree, asks), asks, rows):
        results[ask.index, ask.sample] = result
        if progress is not None:
            progress(len(results), len(asks))

    by_item = [[results[index, sample] for sample in range(num_samples)] for index in range(len(items))]
    by_prompt = by_item if num_samples > 1 else [several[0] for several in by_item]
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
    cycles: int = 1,
) -> Iterator[Chunk]:
    """Generates as `generate` does and yields the text as it comes: whole characters, the same text.

    Args:
        cycles: target passes between two looks at the answer.

    Yields:
        `Chunk`s: `index` tells which of several prompts is answered; the last one of each carries the `Result`.
    """
    items, _ = split(prompts)
    stops = stop_strings(stop, model.tokenizer)
    values = dict(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    options = options_for(len(items), stop=stops, logprobs=logprobs, **values)
    cycles = whole("cycles", cycles, 1)
    drafter_for(model, drafter, tree)  # refuses what is not known before anything else is done
    asks = asks_for(model, items, options, seeds_for(seed, len(items)), 1)
    return _chunks(Batch(model, drafter_of(model, drafter, tree, asks), asks), cycles)


def _chunks(batch: Batch, cycles: int) -> Iterator[Chunk]:
    tellings = [Telling(i, batch.model.tokenizer, row.ask.options.stop) for i, row in enumerate(batch.rows)]

    def news() -> Iterator[Chunk]:
        for i, row in enumerate(batch.rows):
            if not tellings[i].over:
                yield from tellings[i].chunks(row.said, batch.results([i])[0] if row.done else None)

    yield from news()
    for _ in batch.run(cycles):
        yield from news()


def drafter_of(model: Model, drafter: str | Drafter, tree: Any, asks: Sequence[Ask]) -> Drafter:
    """The drafter that was asked for, with a tree that suits a batch of these requests."""
    prompts = sum(len(ask.prompt) for ask in asks) / sum(ask.options.max_new_tokens for ask in asks)
    return drafter_for(model, drafter, tree, rows_for(model, len(asks)), slots_for(model, Plain(), asks), prompts)


def asks_for(model: Model, prompts: list[Any], options: list[Options], seeds: list[int], samples: int) -> list[Ask]:
    """The prompts as requests; raises what `generate` raises of them."""
    asks: list[Ask] = []
    asked = time.perf_counter()
    for index, prompt in enumerate(prompts):
        where = "the prompt" if len(prompts) == 1 else f"prompt {index}"
        ids = encode(model.tokenizer, prompt, model.target.config.vocab_size, where)
        if len(ids) >= model.context:
            raise TooLong(
                f"{where} has {len(ids)} tokens; the model's context is {model.context}, "
                f"so it can be {model.context - 1} at most"
            )
        how, seed = options[index], seeds[index]
        first = Ask(index=index, prompt=ids, options=how, seed=seed, sample=0, asked=asked)
        asks += [dataclasses.replace(first, sample=sample) for sample in range(samples)]
    return asks
