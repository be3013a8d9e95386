"""`eagle-jax serve`: an OpenAI-compatible server."""

import contextlib
import functools
import ipaddress
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import jax
import typer

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import err, one_sentence, sentence, took

server_option = functools.partial(options.option, panel="Server")

Host = Annotated[str, server_option("--host", "Address to listen on; 0.0.0.0 for all interfaces.")]
Port = Annotated[int, server_option("--port", "Port to listen on; 0 takes a free one.", min=0, max=65535)]
ApiKey = Annotated[str | None, server_option("--api-key", "Key that requests must send.", envvar="EAGLE_JAX_API_KEY")]
Name = Annotated[str | None, server_option("--name", "Name of the model in requests; by default the --target.")]


@one_sentence
def serve(
    pair: options.ChatModelOptions = options.ChatModelOptions(),
    host: Host = "127.0.0.1",
    port: Port = 8000,
    slots: Annotated[int, server_option("--slots", "Requests answered concurrently.", min=1)] = 8,
    max_tokens: options.MaxTokens = None,
    max_queue: Annotated[
        int, server_option("--max-queue", "Requests that may wait; further ones get 429.", min=1)
    ] = 64,
    max_seconds: Annotated[
        float, server_option("--max-seconds", "Time limit of one request, in seconds.", min=1.0)
    ] = 600.0,
    prefix_cache_bytes: options.PrefixCacheBytes = api.PREFIX_CACHE_BYTES,
    api_key: ApiKey = None,
    name: Name = None,
    ignore_unknown: options.IgnoreUnknown = False,
    allow_origin: Annotated[
        list[str] | None,
        server_option(
            "--allow-origin ORIGIN",
            "Origin of a web page that may send requests, https://example.com, or * for all; may be repeated.",
        ),
    ] = None,
    generation_config: options.GenerationConfig = False,
    tool_format: Annotated[
        str | None,
        server_option(
            "--tool-format NAME",
            f"How the model calls functions: {', '.join(api.FORMATS)}; by default read from its chat template.",
        ),
    ] = None,
    reasoning_format: Annotated[
        str | None,
        server_option(
            "--reasoning-format NAME",
            f"How the model marks reasoning: {', '.join(api.REASONING_FORMATS)}, which leaves it in the text; by "
            "default read from its chat template.",
        ),
    ] = None,
    drafting: options.DraftingOptions = options.DraftingOptions(),
) -> None:
    """Serve OpenAI's API, /v1/chat/completions, completions and responses, and Anthropic's /v1/messages.

    Requests join the running batch, and each gets the text that it would get alone. Ctrl-C or SIGTERM finishes the
    requests at work, refuses new ones, and exits; a second one exits within seconds.

    **Examples**

    - `eagle-jax serve --port 8000 --slots 4`

    - `eagle-jax serve --target llama-2-7b-chat --slots 32 --host 0.0.0.0 --api-key KEY`
    """
    serving = serving_room()
    _check_format("--tool-format", tool_format, [*api.FORMATS])
    _check_format("--reasoning-format", reasoning_format, api.REASONING_FORMATS)
    sockets = serving.bound(host, port)
    room = dict(rows=slots, max_tokens=max_tokens, max_queue=max_queue, prefix_cache_bytes=prefix_cache_bytes)
    with started(pair, name, drafting, **room) as (called, engine):
        app = serving.create_app(
            {called: engine},
            limits=serving.Limits(answer_seconds=max_seconds),
            api_key=api_key,
            ignore_unknown=ignore_unknown,
            origins=allow_origin or (),
            generation_config=generation_config,
            tool_format=tool_format,
            reasoning_format=reasoning_format,
        )
        notes = []
        if max_tokens is not None and max_tokens > engine.max_tokens:
            notes.append(f"--max-tokens {max_tokens} is more than the model's context of {engine.max_tokens}")

        def greet(addresses: list[str]) -> None:
            _greet(addresses, called, engine, slots, notes)
            warn_of_open_doors(addresses, api_key)
            err.print("  Ctrl-C finishes the requests at work and exits.", style="dim", markup=False)

        serving.Server(app, on_ready=greet).run(sockets=sockets)
    _keep_fastest(engine)


@contextlib.contextmanager
def started(
    pair: options.ModelOptions, name: str | None, drafting: options.DraftingOptions, **how: Any
) -> Iterator[tuple[str, Any]]:
    """Loads the model and compiles its programs; yields the model's name and its engine, closed at the end."""
    target = pair.target or api.default_target(pair.head)
    arguments, start = drafting.arguments, time.monotonic()
    model = pair.load(target=target, **drafting.sources)
    start = took(f"{target} was loaded", start)
    with err.status("Compiling, or reading compiled programs"):
        engine = api.Engine(model, **how, **arguments)
    took("Programs were compiled or read", start)
    try:
        yield name or target, engine
    finally:
        engine.close(drain=False)


def _keep_fastest(engine: Any) -> None:
    """Saves the fastest trees, with which the next server starts."""
    findings = engine.findings()
    if findings:
        try:
            api.keep_budgets(findings)
        except OSError as error:
            err.print(f"The fastest trees are not saved: {sentence(error)}", style="yellow", markup=False)


def _check_format(option: str, value: str | None, choices: Sequence[str]) -> None:
    if value is not None and value not in choices:
        raise typer.BadParameter(f"{option} {value!r} is none of {', '.join(choices)}")


def serving_room() -> Any:
    """Imports the server's package. Raises ImportError with the extra to install if a library is missing."""
    try:
        from eagle_jax import serving
    except ModuleNotFoundError as error:
        raise ImportError(f"a server needs {error.name}; install the extra: pip install 'eagle-jax[serve]'") from None
    return serving


def _greet(addresses: list[str], name: str, engine: Any, slots: int, notes: list[str]) -> None:
    """Prints the addresses and the settings of the server."""
    device = jax.devices()[0]
    what = f"{name}: {slots} slots of {engine.max_tokens} tokens, {engine.by_load}, on {device.device_kind}"
    err.print(f"Serving {what}", style="bold", markup=False)
    for note in notes:
        err.print(f"  {note}", markup=False)
    for address in addresses:
        paths = "models, completions, chat/completions, responses, messages"
        err.print(f"  {address}/v1   {paths}; {address}/health, {address}/metrics", markup=False)


def warn_of_open_doors(addresses: list[str], api_key: str | None) -> None:
    """Warns if other machines can send requests without a key."""
    if api_key is None and not all(_is_local(address) for address in addresses):
        err.print(
            "  Anyone who can reach this machine can send requests: there is no --api-key.",
            style="yellow",
            markup=False,
        )


def _is_local(address: str) -> bool:
    host = address.removeprefix("http://").rpartition(":")[0].strip("[]")
    return ipaddress.ip_address(host).is_loopback
