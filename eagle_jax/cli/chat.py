"""`eagle-jax chat`: a conversation in the terminal."""

import contextlib
import dataclasses
import sys
from typing import Annotated, Any

from eagle_jax import api
from eagle_jax.api import encode
from eagle_jax.cli import options, parsing
from eagle_jax.cli.answers import AnswerWriter, Thinking, as_chat
from eagle_jax.cli.console import err, one_sentence, out, stats_line, waiting, write

HELP = """\
/clear   forget the conversation
/stats   tokens, steps and speed of this session
/help    show this list
/quit    leave (or Ctrl-D)"""
QUESTION = {"role": "user", "content": "Hello."}


@dataclasses.dataclass
class Conversation:
    """The messages and results so far; `system` survives `/clear`."""

    model: api.Model
    system: str | None
    thinking: bool | None
    messages: list[dict[str, str]] = dataclasses.field(default_factory=list)
    results: list[api.Result] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def statistics(self) -> str:
        if not self.results:
            return "no answers yet"
        tokens = sum(len(result.token_ids) for result in self.results)
        steps = sum(result.stats.steps for result in self.results)
        seconds = sum(result.stats.decode_seconds for result in self.results)
        return (
            f"{len(self.results)} answers, {tokens} tokens, {steps} steps "
            f"({tokens / max(steps, 1):.2f} tokens a step), {seconds:.1f} s of decoding"
        )


@one_sentence
def chat(
    system: Annotated[str | None, options.option("--system", "A system message to begin with.")] = None,
    pair: options.ChatModelOptions = options.ChatModelOptions(),
    thinking: Thinking = None,
    sampling: options.SamplingOptions = options.SamplingOptions(),
    settings: options.Set = None,
    generation_config: options.GenerationConfig = False,
    drafting: options.DraftingOptions = options.DraftingOptions(),
    max_tokens: options.MaxTokens = None,
    prefix_cache_bytes: options.PrefixCacheBytes = api.PREFIX_CACHE_BYTES,
) -> None:
    """Chat with the model, which sees the whole conversation. Type /help for the commands.

    Ctrl-C stops an answer and keeps its text so far; Ctrl-D leaves.

    **Examples**

    - `eagle-jax chat`

    - `eagle-jax chat --target llama-3.1-8b-instruct --temperature 0.7 --system "Answer in one sentence."`
    """
    drafter = drafting.arguments
    model = pair.load(**drafting.sources)
    request = sampling.request | parsing.parse_set(settings)
    request = parsing.recommended(model, request) if generation_config else request
    if not getattr(model.tokenizer, "chat_template", None):
        raise ValueError(
            "a conversation needs a chat template, and the model's tokenizer has none; put one into its folder as "
            'chat_template.jinja, or continue plain text: eagle-jax generate --raw "Once upon a time"'
        )
    conversation = Conversation(model, system, thinking)
    if system is not None:  # some templates refuse system messages
        encode(
            model.tokenizer, [*conversation.messages, QUESTION], model.target.config.vocab_size, "the system message"
        )
    with err.status("Compiling"):
        room: dict[str, Any] = dict(rows=1, max_tokens=max_tokens, prefix_cache_bytes=prefix_cache_bytes)
        engine = api.Engine(model, steps=1, **room, **drafter)
    try:
        _converse(engine, conversation, request)
    finally:
        engine.close(drain=False)


def _converse(engine: Any, conversation: Conversation, request: dict[str, Any]) -> None:
    """Answers lines until the end of input or /quit."""
    err.print("Type a message, or /help.", style="dim")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing and history in `input`
    while (line := _read()) is not None and line != "/quit":
        if line.startswith("/"):
            _run_command(line, conversation)
        elif line:
            _answer(engine, conversation, line, request)


def _read() -> str | None:
    """Returns the next line without its outer spaces; None at the end of input."""
    is_terminal = sys.stdin.isatty()
    try:
        return input("> " if is_terminal else "").strip()
    except EOFError:
        if is_terminal:
            write("\n")
        return None


def _run_command(line: str, conversation: Conversation) -> None:
    if line == "/clear":
        conversation.clear()
        err.print("The conversation is forgotten.", style="dim")
    elif line == "/stats":
        out.print(conversation.statistics(), markup=False)
    elif line == "/help":
        out.print(HELP, markup=False)
    else:
        err.print(f"eagle-jax: {line.split()[0]} is not a command; /help lists them", markup=False)


def _answer(engine: Any, conversation: Conversation, line: str, request: dict[str, Any]) -> None:
    """Streams one answer and adds it to the conversation, unless the engine refuses the request."""
    conversation_so_far = [*conversation.messages, {"role": "user", "content": line}]
    result, ticket, writer, prompt = None, None, None, as_chat(conversation_so_far, conversation.thinking)
    try:
        writer = AnswerWriter(conversation.model, prompt)
        longest = min(request["max_new_tokens"], engine.room_for(prompt))
        ticket = engine.submit(prompt, **request | {"max_new_tokens": longest})
        for chunk in waiting(iter(ticket), "Reading"):
            writer.add(chunk)
            result = chunk.result or result
    except KeyboardInterrupt:
        if ticket is not None:
            ticket.cancel()
        write(" [interrupted]")
    except (ValueError, api.EngineError) as error:
        hint = "; /clear forgets the conversation" if conversation.results else ""
        err.print(f"eagle-jax: {error}{hint}", markup=False)
        return
    write("\n")
    if writer is None:  # interrupted before anything was asked
        return
    conversation.messages = [*conversation_so_far, writer.message]
    if result is not None:
        conversation.results.append(result)
        err.print(stats_line(result), style="dim", markup=False)
