"""Options that several commands share."""

from typing import Annotated, Literal

import typer

from eagle_jax import api

MODEL, SAMPLING, DRAFTING = "Model", "Sampling", "Drafting"
OUTPUT, HOSTS, MEMORY = "Output", "Hosts", "Memory"

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="PATH|NAME",
        help="Folder, .gguf file or hub name of the model, or a name that `eagle-jax models` lists; "
        "smollm2-135m-instruct by default, downloaded once. toy comes with the package.",
        rich_help_panel=MODEL,
    ),
]
Head = Annotated[
    str | None,
    typer.Option(
        "--head",
        metavar="PATH|NAME",
        help="Folder or hub name of its EAGLE, P-EAGLE, DFlash, DSpark, Medusa or Hydra heads, or eagle3, the toy's.",
        rich_help_panel=MODEL,
    ),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(
        "--dtype",
        help="Type of the weights; as stored by default, but float32 on a CPU without bfloat16 instructions.",
        rich_help_panel=MODEL,
    ),
]
TargetConfig = Annotated[
    str | None,
    typer.Option(
        "--target-config",
        metavar="JSON",
        help="Entries that take the place of those in the model's config.json, such as '{\"rope_theta\": 10000}'.",
        rich_help_panel=MODEL,
    ),
]
HeadConfig = Annotated[
    str | None,
    typer.Option(
        "--head-config",
        metavar="JSON",
        help="The same for the head's, such as '{\"sliding_window\": 512}', the window of its attention.",
        rich_help_panel=MODEL,
    ),
]
Quantize = Annotated[
    str | None,
    typer.Option(
        "--quantize",
        metavar="KIND",
        help="Quantize weights while they are read: int8, int4 (groups of 32), int4-128, int4-asym, int4-128-asym; "
        "after a slash what the output matrix becomes, int8 without one: int4/int4. Files that are quantized are kept: "
        "none makes floats of them, requantize:int8 quantizes them again. draft:int8 quantizes what drafts alone, "
        "which changes no text.",
        rich_help_panel=MODEL,
    ),
]
Mesh = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="AXES",
        help="Devices to spread over: data:2,model:4, or auto for all there are; one device by default.",
        rich_help_panel=MODEL,
    ),
]
Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="Wrap the prompt in the model's chat template, or pass it as it is; by default chat where there is one.",
        rich_help_panel=MODEL,
    ),
]

MaxNewTokens = Annotated[
    int, typer.Option("--max-new-tokens", "-n", help="Longest answer, in tokens.", rich_help_panel=SAMPLING)
]
Temperature = Annotated[
    float, typer.Option("--temperature", help="0 takes the likeliest token; 1 samples.", rich_help_panel=SAMPLING)
]
TopK = Annotated[
    int, typer.Option("--top-k", help="Sample from the k likeliest tokens; 0 for all.", rich_help_panel=SAMPLING)
]
TopP = Annotated[
    float,
    typer.Option("--top-p", help="Sample from the likeliest tokens that sum to p.", rich_help_panel=SAMPLING),
]
MinP = Annotated[
    float,
    typer.Option(
        "--min-p", help="Leave out tokens less likely than this share of the likeliest.", rich_help_panel=SAMPLING
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", help="Same seed, same text, with any drafter or none.", rich_help_panel=SAMPLING)
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End answers before this text; may be repeated.", rich_help_panel=SAMPLING),
]


ChatTemplate = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        metavar="FILE|NAME",
        help="Jinja file in the place of the model's chat template, or the name of one of several that it has.",
        rich_help_panel=MODEL,
    ),
]
IgnoreUnknown = Annotated[
    bool,
    typer.Option(
        "--ignore-unknown",
        help="Pass over fields of requests that are not known; a server names them in a header of the response.",
    ),
]
GenerationConfig = Annotated[
    bool,
    typer.Option(
        "--generation-config",
        help="Draw as the model's generation_config.json recommends, where options have their defaults.",
        rich_help_panel=SAMPLING,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help=f"One more option, in JSON; may be repeated. Names: {', '.join(api.Processing.__annotations__)}.",
        rich_help_panel=SAMPLING,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=2,
        help="Most tokens of prompt and answer together; the model's context by default, 4096 at most.",
        rich_help_panel=MEMORY,
    ),
]
PrefixCacheBytes = Annotated[
    int,
    typer.Option(
        "--prefix-cache-bytes",
        min=0,
        metavar="BYTES",
        help="Memory for what was read of prompts, from which others that begin alike start; 0 is off.",
        rich_help_panel=MEMORY,
    ),
]


def _drafter_name(name: str) -> str:
    if name not in api.DRAFTERS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(api.DRAFTERS)}")
    return name


Drafter = Annotated[
    str,
    typer.Option(
        "--drafter",
        metavar="NAME",
        callback=_drafter_name,
        help=f"One of {', '.join(api.DRAFTERS)}. none is plain decoding; auto uses the head there is.",
        rich_help_panel=DRAFTING,
    ),
]
Tree = Annotated[
    str,
    typer.Option(
        "--tree",
        metavar="TREE",
        help="auto, published (the method's own), eagle1 (25 drafted nodes), nodes,depth,top-k as 60,7,10, "
        "with the beam after them if it is not top-k, or a probability as 8,3,2,0.03 (less probable paths are left "
        "out), nodes,least of a chain as 6,0.8, or the nodes' parents as -1,0,0,1.",
        rich_help_panel=DRAFTING,
    ),
]

DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model", metavar="PATH|NAME", help="Small model for --drafter draft-model.", rich_help_panel=DRAFTING
    ),
]
Datastore = Annotated[
    str | None,
    typer.Option(
        "--datastore",
        metavar="FILE",
        help="Texts for --drafter rest; `eagle-jax datastore` makes them.",
        rich_help_panel=DRAFTING,
    ),
]

Coordinator = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        metavar="HOST:PORT|auto",
        help="Start when all processes are there: at this address of process 0, or auto on TPU slices and clusters.",
        rich_help_panel=HOSTS,
    ),
]
Processes = Annotated[
    int | None, typer.Option("--processes", min=1, help="Processes that share the work.", rich_help_panel=HOSTS)
]
Process = Annotated[
    int | None, typer.Option("--process", min=0, help="Which of them this is, from 0.", rich_help_panel=HOSTS)
]

Repeats = Annotated[
    int,
    typer.Option(
        "--repeats",
        min=1,
        help="Ask each question so often, and count the quickest time: for machines on which others are at work.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.", rich_help_panel=OUTPUT)]
