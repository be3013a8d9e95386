"""`eagle-jax generate`: answers one prompt."""

import dataclasses
import pathlib
import sys
from typing import Annotated, Any

import typer

from eagle_jax import api
from eagle_jax.cli import options, parsing
from eagle_jax.cli.answers import AnswerWriter, Thinking, as_chat
from eagle_jax.cli.console import err, one_sentence, out, print_json, stats_line, waiting, write


@one_sentence
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; `-` or nothing reads it from stdin.")] = None,
    file: Annotated[pathlib.Path | None, options.option("--file -f", "Read the prompt from this file.")] = None,
    pair: options.ChatModelOptions = options.ChatModelOptions(),
    chat: options.Chat = None,
    thinking: Thinking = None,
    sampling: options.SamplingOptions = options.SamplingOptions(),
    num_samples: Annotated[int, options.sampling_option("--num-samples", "Number of answers.")] = 1,
    stop: options.Stop = None,
    settings: options.Set = None,
    generation_config: options.GenerationConfig = False,
    drafting: options.DraftingOptions = options.DraftingOptions(),
    as_json: options.Json = False,
) -> None:
    """Answer one prompt, streaming the text as it is written.

    The text goes to stdout, the line of statistics to stderr.

    **Examples**

    - `eagle-jax generate "A train travels 60 miles in 2 hours. How fast is it?"`

    - `eagle-jax generate --temperature 1 --seed 7 --num-samples 3 "Tell me about rivers."`

    - `eagle-jax generate --set repetition_penalty=1.1 --set 'bad_words=["very"]' "Tell me about rivers."`

    - `cat prompt.txt | eagle-jax generate --target ./llama --head ./eagle --raw --json`
    """
    words = read_prompt(prompt, file)
    drafter = drafting.arguments
    model = pair.load(**drafting.sources)
    is_chat = parsing.wants_chat(model, chat)
    question = as_chat([{"role": "user", "content": words}], thinking) if is_chat else words
    request = {**sampling.request, "stop": stop or None, **drafter, **parsing.parse_set(settings)}
    request = parsing.recommended(model, request) if generation_config else request
    if as_json or num_samples != 1:
        _print_answers(model, question, request, num_samples, as_json)
    else:
        _streamed(model, question, request)


def read_prompt(prompt: str | None, file: pathlib.Path | None) -> str:
    """Reads the prompt from the argument, the file or stdin. Raises ValueError for two sources, or none."""
    if prompt is not None and file is not None:
        raise ValueError("a prompt and --file were both given; give one of them")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    elif prompt in (None, "-"):
        if sys.stdin.isatty():
            raise ValueError('no prompt was given; write eagle-jax generate "PROMPT", or use --file or a pipe')
        text = sys.stdin.read().removeprefix("\ufeff")
    else:
        text = prompt or ""
    if not text.strip():
        raise ValueError("the prompt is empty; give at least one word")
    return text if prompt not in (None, "-") else text.removesuffix("\n")


def _streamed(model: api.Model, question: Any, request: dict[str, Any]) -> None:
    result, writer = None, AnswerWriter(model, question)
    for chunk in waiting(api.stream(model, question, **request), "Reading the prompt"):
        writer.add(chunk)
        result = chunk.result or result
    write("\n")
    if result is not None:
        err.print(stats_line(result), style="dim", markup=False)


def _print_answers(model: api.Model, question: Any, request: dict[str, Any], num_samples: int, as_json: bool) -> None:
    with err.status("Writing"):
        answers = api.generate(model, question, num_samples=num_samples, **request)
    results = answers if isinstance(answers, list) else [answers]
    for number, result in enumerate(results, start=1):
        if as_json:
            print_json(dataclasses.asdict(result))
            continue
        if number > 1:
            write("\n")
        out.print(f"[bold]Answer {number} of {len(results)}[/bold]")
        write(result.text + "\n")
        err.print(stats_line(result), style="dim", markup=False)
