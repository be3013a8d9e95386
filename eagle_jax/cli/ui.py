"""`eagle-jax ui`: the page in a browser."""

import webbrowser
from typing import Annotated

import jax

from eagle_jax.cli import options
from eagle_jax.cli.console import err, one_sentence
from eagle_jax.cli.serve import ApiKey, Host, Name, Port, server_option, serving_room, started, warn_of_open_doors

READERS = 2  # concurrent answers of the default drafter; drafters chosen on the page answer one at a time


@one_sentence
def ui(
    pair: options.ModelOptions = options.ModelOptions(),
    host: Host = "127.0.0.1",
    port: Port = 8000,
    open_: Annotated[bool, server_option("--open", "Open the page in a browser.")] = False,
    max_tokens: options.MaxTokens = None,
    api_key: ApiKey = None,
    name: Name = None,
    drafting: options.DraftingOptions = options.DraftingOptions(),
) -> None:
    """Chat with the model in a browser: drafted tokens are marked, trees are drawn, and drafters can be raced.

    The page is served from this machine and loads nothing from elsewhere; the server also answers OpenAI's requests, as
    `eagle-jax serve` does. `--drafter` and `--tree` are the page's defaults.

    **Examples**

    - `eagle-jax ui --open`

    - `eagle-jax ui --target llama-2-7b-chat --tree published --port 8080`
    """
    serving = serving_room()
    from eagle_jax.serving import ui as page_room

    sockets = serving.bound(host, port)
    with started(pair, name, drafting, rows=READERS, max_tokens=max_tokens, steps=1, record=True) as (called, engine):
        page = page_room.Page(engine, name=called, device=jax.devices()[0].device_kind, **drafting.arguments)
        app = serving.create_app({called: engine}, api_key=api_key, routes=page.routes)

        def greet(addresses: list[str]) -> None:
            for address in addresses:
                err.print(f"  {address}/ui", style="bold", markup=False)
            warn_of_open_doors(addresses, api_key)
            err.print("  Ctrl-C ends.", style="dim", markup=False)
            if open_:
                webbrowser.open(f"{addresses[0]}/ui")

        serving.Server(app, on_ready=greet).run(sockets=sockets)
