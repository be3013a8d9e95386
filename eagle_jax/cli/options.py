"""Options that several commands share, alone and in groups."""

import dataclasses
import functools
from typing import Annotated, Any, Literal

import typer

from eagle_jax import api
from eagle_jax.cli import parsing
from eagle_jax.cli.console import err


def option(typed: str, help: str, *, panel: str | None = None, **more: Any) -> Any:
    """Returns a `typer.Option` of a panel of the help, declared as it is typed: `--target -t PATH|NAME`."""
    words = typed.split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :]) or None
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **more)


model_option, sampling_option, drafting_option, output_option, hosts_option, memory_option = (
    functools.partial(option, panel=panel) for panel in ("Model", "Sampling", "Drafting", "Output", "Hosts", "Memory")
)

Target = Annotated[
    str | None,
    model_option(
        "--target -t PATH|NAME",
        "Folder, .gguf file or hub name of the model, or a name that `eagle-jax models` lists; "
        "smollm2-135m-instruct by default, downloaded once. toy comes with the package.",
    ),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    model_option(
        "--dtype", "Type of the weights; as stored by default, but float32 on a CPU without bfloat16 instructions."
    ),
]
Quantize = Annotated[
    str | None,
    model_option(
        "--quantize KIND",
        "Quantize weights while they are read: int8, int4 (groups of 32), int4-128, int4-asym, int4-128-asym; "
        "the kind of the output matrix after a slash, int8 by default: int4/int4. Files that are quantized keep their "
        "form: none expands them to floats, requantize:int8 quantizes them again. draft:int8 quantizes the "
        "drafter alone, which changes no text.",
    ),
]
Mesh = Annotated[
    str | None,
    model_option(
        "--mesh AXES", "Devices to shard over: data:2,model:4, or auto for all of them; one device by default."
    ),
]
Chat = Annotated[
    bool | None,
    model_option(
        "--chat/--raw",
        "Wrap the prompt in the model's chat template, or pass it as it is; chat by default if there is a template.",
    ),
]

Stop = Annotated[list[str] | None, sampling_option("--stop", "End answers before this text; may be repeated.")]
IgnoreUnknown = Annotated[
    bool,
    option(
        "--ignore-unknown",
        "Ignore unknown fields of requests; a server names them in a header of the response.",
    ),
]
GenerationConfig = Annotated[
    bool,
    sampling_option(
        "--generation-config",
        "Use the sampling that the model's generation_config.json recommends, for options left at their defaults.",
    ),
]
Set = Annotated[
    list[str] | None,
    sampling_option(
        "--set NAME=VALUE",
        f"One more option, in JSON; may be repeated. Names: {', '.join(api.Processing.__annotations__)}.",
    ),
]
MaxTokens = Annotated[
    int | None,
    memory_option(
        "--max-tokens",
        "Limit of prompt and answer together, in tokens; by default the model's context, at most 4096.",
        min=2,
    ),
]
PrefixCacheBytes = Annotated[
    int,
    memory_option(
        "--prefix-cache-bytes BYTES",
        "Memory for the prefixes of earlier prompts, which later prompts reuse; 0 is off.",
        min=0,
    ),
]


def _drafter_name(name: str) -> str:
    if name not in api.DRAFTERS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(api.DRAFTERS)}")
    return name


Drafter = Annotated[
    str,
    drafting_option(
        "--drafter NAME",
        f"One of {', '.join(api.DRAFTERS)}. none is plain decoding; auto uses the loaded head.",
        callback=_drafter_name,
    ),
]
Tree = Annotated[
    str,
    drafting_option(
        "--tree TREE",
        "auto, published (the method's own), eagle1 (25 drafted nodes), nodes,depth,top-k as 60,7,10, "
        "then the beam if it is not top-k, or a probability as 8,3,2,0.03 (less probable paths are left out); "
        "nodes,probability of a chain as 6,0.8; or the parent of each node as -1,0,0,1.",
    ),
]

DraftModel = Annotated[str | None, drafting_option("--draft-model PATH|NAME", "Small model for --drafter draft-model.")]
Datastore = Annotated[
    str | None, drafting_option("--datastore FILE", "Texts for --drafter rest; `eagle-jax datastore` makes them.")
]

Coordinator = Annotated[
    str | None,
    hosts_option(
        "--coordinator HOST:PORT|auto",
        "Wait for all processes, at this address of process 0; auto on TPU slices and clusters.",
    ),
]
Processes = Annotated[int | None, hosts_option("--processes", "Processes that share the work.", min=1)]
Process = Annotated[int | None, hosts_option("--process", "Index of this process, from 0.", min=0)]

Repeats = Annotated[
    int,
    option(
        "--repeats",
        "Ask each question this many times and keep the shortest time: for machines that are shared.",
        min=1,
    ),
]
Json = Annotated[bool, output_option("--json", "Print JSON instead of text.")]


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Which model and head, and how their weights are read: the arguments of `api.load`."""

    target: Target = None
    head: Annotated[
        str | None,
        model_option(
            "--head PATH|NAME",
            "Folder or hub name of its EAGLE, P-EAGLE, DFlash, DSpark, Medusa or Hydra heads, or eagle3, the toy's.",
        ),
    ] = None
    target_config: Annotated[
        str | None,
        model_option(
            "--target-config JSON",
            "Entries that replace those of the model's config.json, such as '{\"rope_theta\": 10000}'.",
        ),
    ] = None
    head_config: Annotated[
        str | None,
        model_option(
            "--head-config JSON",
            "The same for the head's, such as '{\"sliding_window\": 512}', the window of its attention.",
        ),
    ] = None
    dtype: Dtype = None
    quantize: Quantize = None
    mesh: Mesh = None

    def given(self, *names: str) -> dict[str, Any]:
        """Returns the named options that are not None."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def load(self, **more: Any) -> api.Model:
        """Calls `api.load` with a spinner that names the target; `more` adds to the options or overrides them.

        Arguments that are None are not passed on.
        """
        arguments = {name: value for name, value in (vars(self) | more).items() if value is not None}
        for name in ("target_config", "head_config"):
            if name in arguments:
                arguments[name] = parsing.parse_entries(arguments[name], f"--{name.replace('_', '-')}")
        if "target" not in arguments:  # before the spinner: it may show a download
            arguments["target"] = api.default_target(arguments.get("head"))
        with err.status(f"Loading {arguments['target']}"):
            return api.load(**arguments)


@dataclasses.dataclass(frozen=True)
class ChatModelOptions(ModelOptions):
    """The same, and the chat template."""

    chat_template: Annotated[
        str | None,
        model_option(
            "--chat-template FILE|NAME",
            "Jinja file to use instead of the model's chat template, or the name of one if the model has several.",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class PairArguments(ModelOptions):
    """The same, with target and head as positional arguments."""

    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="Folder or name of the model; SmolLM2 by default.")
    ] = None
    head: Annotated[str | None, typer.Argument(metavar="[HEAD]", help="Folder or name of its head.")] = None


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """How long answers are, and how their tokens are drawn: options of a request."""

    max_new_tokens: Annotated[int, sampling_option("--max-new-tokens -n", "Limit of the answer, in tokens.")] = 256
    temperature: Annotated[float, sampling_option("--temperature", "0 takes the likeliest token; 1 samples.")] = 0.0
    top_k: Annotated[int, sampling_option("--top-k", "Sample from the k likeliest tokens; 0 for all.")] = 0
    top_p: Annotated[float, sampling_option("--top-p", "Sample from the likeliest tokens that sum to p.")] = 1.0
    min_p: Annotated[
        float,
        sampling_option(
            "--min-p", "Leave out tokens less likely than this fraction of the likeliest token's probability."
        ),
    ] = 0.0
    seed: Annotated[int, sampling_option("--seed", "Same seed, same text, with any drafter or none.")] = 0

    @property
    def request(self) -> dict[str, Any]:
        """All options by name."""
        return dict(vars(self))

    @property
    def draws(self) -> dict[str, Any]:
        """The options of the draw itself: all but the length."""
        return {name: value for name, value in vars(self).items() if name != "max_new_tokens"}


@dataclasses.dataclass(frozen=True)
class DraftingOptions:
    """The drafter and its trees."""

    drafter: Drafter = "auto"
    tree: Tree = "auto"
    draft_model: DraftModel = None
    datastore: Datastore = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments `drafter` and `tree` of the api. Raises ValueError if `tree` cannot be parsed."""
        return {"drafter": self.drafter, "tree": parsing.parse_tree(self.tree)}

    @property
    def sources(self) -> dict[str, Any]:
        """Further arguments of `ModelOptions.load`."""
        return {"draft": self.draft_model, "datastore": self.datastore}
