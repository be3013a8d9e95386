"""`eagle-jax ui`: the page in a browser."""

import time
import webbrowser
from typing import Annotated, Any

import jax
import typer

from eagle_jax import api
from eagle_jax.cli import options, parsing
from eagle_jax.cli.console import err, load, one_sentence, took
from eagle_jax.cli.serve import SERVER, ApiKey, Host, Name, Port, serving_room, warn_of_open_doors

Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.", rich_help_panel=SERVER)]
READERS = 2  # answers at a time of the drafter that the page begins with; of others that readers choose, one


@one_sentence
def ui(
    target: options.Target = None,
    head: options.Head = None,
    target_config: options.TargetConfig = None,
    head_config: options.HeadConfig = None,
    dtype: options.Dtype = None,
    quantize: options.Quantize = None,
    mesh: options.Mesh = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    open_: Open = False,
    max_tokens: options.MaxTokens = None,
    api_key: ApiKey = None,
    name: Name = None,
    drafter: options.Drafter = "auto",
    tree: options.Tree = "auto",
    draft_model: options.DraftModel = None,
    datastore: options.Datastore = None,
) -> None:
    """Talk with the model in a browser: what the draft guessed is marked, its trees are drawn, and races are run.

    The page is served from this machine and loads nothing from elsewhere; the server also answers OpenAI's requests, as
    `eagle-jax serve` does. `--drafter` and `--tree` are what it begins with.

    **Examples**

    - `eagle-jax ui --open`

    - `eagle-jax ui --target llama-2-7b-chat --tree published --port 8080`
    """
    serving = serving_room()
    from eagle_jax.serving import ui as page_room

    sockets = serving.bound(host, port)
    target = target or api.default_target(head)
    drafting: dict[str, Any] = {"drafter": drafter, "tree": parsing.parse_tree(tree)}
    start = time.monotonic()
    model = load(
        target,
        head,
        dtype,
        target_config=target_config,
        head_config=head_config,
        quantize=quantize,
        mesh=mesh,
        draft=draft_model,
        datastore=datastore,
    )
    start = took(f"{target} was loaded", start)
    with err.status("Compiling, or reading what was compiled before"):
        engine = api.Engine(model, rows=READERS, max_tokens=max_tokens, steps=1, record=True, **drafting)
    took("Programs were made ready", start)
    try:
        called = name or target
        page = page_room.Page(engine, name=called, device=jax.devices()[0].device_kind, **drafting)
        app = serving.create_app({called: engine}, api_key=api_key, routes=page.routes)

        def greet(addresses: list[str]) -> None:
            for address in addresses:
                err.print(f"  {address}/ui", style="bold", markup=False)
            warn_of_open_doors(addresses, api_key)
            err.print("  Ctrl-C ends.", style="dim", markup=False)
            if open_:
                webbrowser.open(f"{addresses[0]}/ui")

        serving.Server(app, on_ready=greet).run(sockets=sockets)
    finally:
        engine.close(drain=False)
