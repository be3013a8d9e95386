"""A stand-in for the api, so that the commands are tested in milliseconds; test_shipped_pair.py runs the real thing."""

import copy
import dataclasses
import pathlib
import types
import webbrowser
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle_jax import api, serving
from eagle_jax.chat.conversations import Skipped
from eagle_jax.cli import app
from eagle_jax.converters.describe import Description
from eagle_jax.decoding.policy import DynamicTree
from eagle_jax.decoding.tree import TreeShape
from eagle_jax.jobs import Job
from eagle_jax.methods.budgets import Budget
from eagle_jax.serving import ui
from eagle_jax.tuning.tree_costs import Costs, Estimate

NOTHING = api.Stats(  # of an answer that the prompt's forward pass gives
    steps=0,
    mean_accepted_length=float("nan"),
    accepted_lengths=[],
    accepted_by_depth=[],
    structured_seconds=0.0,
    compile_seconds=0.0,
    prefill_seconds=0.01,
    first_token_seconds=0.01,
    decode_seconds=0.0,
    tokens_per_second=float("nan"),
)


@dataclasses.dataclass
class FakeTokenizer:
    """A token for every word, and `<5>` for token 5."""

    chat_template: str | None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(range(len(text.split())))}

    def decode(self, ids: list[int]) -> str:
        return "".join(f"<{token}>" for token in ids)


@dataclasses.dataclass
class FakeTicket:
    """An answer that is there at once."""

    fake: "Fake"
    chunks: Iterator[api.Chunk]

    def __iter__(self) -> Iterator[api.Chunk]:
        return self.chunks

    def cancel(self) -> None:
        self.fake.engines.append("cancelled")


@dataclasses.dataclass
class Fake:
    """What the commands were asked to do, and how the stand-in should behave."""

    loads: list[tuple] = dataclasses.field(default_factory=list)
    requests: list[tuple[Any, dict]] = dataclasses.field(default_factory=list)
    conversions: list[tuple] = dataclasses.field(default_factory=list)
    error: BaseException | None = None
    words: tuple[str, ...] = ("Hello", " [b]world[/b]", ".")
    template: str | None = "{{ messages }}"
    tokenizer: Any = None  # a real one, where there has to be one
    generation: dict[str, Any] = dataclasses.field(default_factory=dict)
    head: bool = True
    empty: bool = False
    problem: str | None = None
    trained: list[Any] = dataclasses.field(default_factory=list)
    events: list[Any] = dataclasses.field(default_factory=list)
    timed: list[str] = dataclasses.field(default_factory=list)
    timed_as: list[dict] = dataclasses.field(default_factory=list)
    untimed: Exception | None = None
    asked_again: list[tuple] = dataclasses.field(default_factory=list)
    quantized: list[str | None] = dataclasses.field(default_factory=list)
    target_configs: list[Any] = dataclasses.field(default_factory=list)
    head_configs: list[Any] = dataclasses.field(default_factory=list)
    meshes: list[str | None] = dataclasses.field(default_factory=list)
    rounded: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    done: int | None = None
    jobs: list[tuple[Job, dict]] = dataclasses.field(default_factory=list)
    kept: list[Any] = dataclasses.field(default_factory=list)
    pages: list[dict] = dataclasses.field(default_factory=list)
    opened: list[str] = dataclasses.field(default_factory=list)
    unreadable: list[str] = dataclasses.field(default_factory=list)
    plain_ids: list[int] = dataclasses.field(default_factory=lambda: [5, 6, 7])
    room: int = 400
    engines: list[Any] = dataclasses.field(default_factory=list)
    served: list[tuple[list[str], dict]] = dataclasses.field(default_factory=list)
    default: str = "smollm2-135m-instruct"

    def default_target(self, head: Any = None) -> str:
        return self.default

    def result(self, drafter: str = "auto") -> api.Result:
        if self.empty:
            return self.one_token()
        steps = 3 if drafter == "none" else 1
        accepted = dict(accepted_lengths=[3 // steps] * steps, accepted_by_depth=[1.0, 0.5])
        speeds = dict(decode_seconds=0.02, tokens_per_second=150.0)
        stats = dataclasses.replace(NOTHING, steps=steps, mean_accepted_length=3 / steps, **accepted, **speeds)
        return api.Result(
            text="".join(self.words),
            token_ids=self.plain_ids if drafter == "none" else [5, 6, 7],
            finish_reason="stop",
            logprobs=None,
            prompt_tokens=4,
            stats=stats,
        )

    @property
    def tuned(self) -> api.Tuned:
        """Two rows, for which (4, 2, 1) was found faster than plain decoding."""
        tree = DynamicTree(4, 2, 1)
        where = dict(device="cpu: cpu, 2 cores", model="0", mesh={}, method="eagle")
        budget = Budget(**where, rows=2, slots=384, tree=(4, 2, 1), plain=200.0, speed=300.0)
        costs = Costs(verify_steps=((1, 0.01), (4, 0.012)), begin=((1, 0.001),), level=((1, 0.0005),))
        return api.Tuned(
            budget=budget,
            costs=costs,
            estimates=[Estimate(tree, 2.25, costs.step(tree)), Estimate(None, 1.0, costs.plain)],
            measured={None: 200.0, tree: 300.0},
            by_rank=[[0.75, 0.125], [0.5, 0.25]],
        )

    def one_token(self) -> api.Result:
        return api.Result(
            text="a", token_ids=[5], finish_reason="length", logprobs=None, prompt_tokens=4, stats=NOTHING
        )

    def load(
        self,
        target=None,
        head=None,
        *,
        dtype=None,
        target_config=None,
        quantize=None,
        mesh=None,
        chat_template=None,
        **drafting,
    ):
        self.target_configs.append(target_config)
        self.head_configs.append(drafting.pop("head_config", None))
        self.meshes.append(mesh)
        self.loads.append((target, head, dtype))
        self.quantized.append(quantize)
        model = object.__new__(api.Model)
        fields = dict(
            target=types.SimpleNamespace(config=types.SimpleNamespace(vocab_size=9), size=1, dtype="float32"),
            head=object() if self.head else None,
            tokenizer=self.tokenizer or FakeTokenizer(self.template),
            context=512,
            generation=self.generation,
        )
        for name, value in fields.items():
            object.__setattr__(model, name, value)
        return model

    def generate(self, model, prompts, *, num_samples=1, **request):
        self.requests.append((prompts, request))
        if self.error:
            raise self.error
        result = self.result(request.get("drafter", "auto"))
        if not isinstance(prompts, str) and isinstance(prompts[0], (str, list)):
            return [result] * len(prompts)
        return [result] * num_samples if num_samples > 1 else result

    def stream(self, model, prompts, **request):
        self.requests.append((prompts, request))
        for word in self.words:
            yield api.Chunk(index=0, text=word, token_ids=[5], result=None)
            if self.error:
                raise self.error
        yield api.Chunk(index=0, text="", token_ids=[], result=self.result())

    def encode(self, tokenizer, prompt, vocab_size, where):
        return list(range(len(str(prompt))))

    def with_head(self, model, head, *, head_config=None, quantize=None):
        self.head_configs.append(head_config)
        self.loads.append((None, head, None))
        return copy.copy(model)

    def tree_shape(self, model, drafter, tree):
        if drafter not in ("none", "eagle", "prompt-lookup", "hybrid"):
            raise ValueError(f"drafter={drafter!r} is not known")
        return TreeShape(*{"none": (1, 0), "eagle": (6, 3)}.get(drafter, (4, 3)))

    def time_parts(self, model, prompt, *, drafter, tree, **sampling):
        self.timed.append(drafter)
        self.timed_as.append(sampling)
        if self.untimed:
            raise self.untimed
        return api.Parts(draft=0.001, verify=0.004, step=0.006)

    def trace(self, model, prompt, *, steps, drafter, tree, **sampling):
        assert sampling == self.timed_as[-1]
        parents, valid = [-1, 0, 0, 1, 3, 0], [True] * 5 + [False]
        short = api.Step([5, 6, 7, 8, 4, 0], parents, valid, [7, 1, 1, 1, 1, 1], [0, 2])
        return [short, api.Step([5, 6, 7, 8, 4, 0], parents, valid, [6, 8, 1, 2, 1, 1], [0, 1, 3])]

    def closest_draws(self, model, token_ids, **sampling):
        self.asked_again.append((list(token_ids), sampling))
        return [(7, 3.5), (8, 3.4375)]

    def quantize(self, source, folder, to, requantize=False):
        self.rounded.append((source, str(folder), to))

    def convert_gguf(self, source, folder, *, dtype):
        self.conversions.append((source, str(folder), dtype))

    def convert(self, source, folder, format, *, target=None, changes=None, dtype=None):
        self.conversions.append((source, str(folder), format, target, changes, dtype))

    def train(self, config, observe):
        if self.error:
            raise self.error
        self.trained.append(config)
        for event in self.events:
            observe(event)
        pathlib.Path(config.out).mkdir(parents=True, exist_ok=True)
        return api.events.Finished(head=pathlib.Path(config.out) / "head", best=3, done=self.done or config.steps)

    def regenerate(self, model, data, out, **request):
        self.requests.append((str(data), request))
        request["progress"](1, 2)
        return api.Regenerated(answered=5, before=2, cut=1, skipped=0)

    def job(self, *files, **options):
        job = Job(*files, **options)

        def run(model, *, progress, **request):
            self.jobs.append((job, request))
            mine = range(job.host, job.rows, job.hosts)
            for number in mine:
                job._journal.append(number, {"id": number, "text": "Hello"})
            tally = api.Tally(rows=len(mine), before=0, answered=len(mine), tokens=3 * len(mine))
            tally.utilisation.row_steps, tally.utilisation.used = 4, 3
            progress(tally)
            return tally

        job.run = run
        return job

    def fingerprints(self, target, head, *, draft=None, datastore=None):
        return {"target": target, "head": head}

    def tokenizer_of(self, target):
        return FakeTokenizer(self.template)

    def dtype_name(self, dtype):
        return dtype

    def make_datastore(self, tokenizer, files, to, *, limit, progress, skipped):
        progress(1200)
        for place in self.unreadable:
            skipped(Skipped(place, "not JSON"))
        return len(files), 1200

    def profile(self, model, prompt, **request):
        self.requests.append((prompt, request))
        phases = {"draft: first level": 0.001, "check: mlp": 0.003, "rest": 0.0}
        return api.Profile(prompt_tokens=7, prefill=0.02, plain=0.002, step=0.004, tokens=2.5, phases=phases)

    def calibrate_head(self, model, target, head, prompts=None, *, progress=None):
        self.requests.append((prompts, {}))
        return model

    def tune(self, model, *, batch_sizes, **request):
        self.requests.append((None, request))
        yield self.tuned

    @property
    def findings(self) -> list[api.Finding]:
        """A product for which the reference is slower than one candidate, and another is wrong."""
        of = dict(device="cpu 0, jax 0", operation="linear", shape="8 x 4 of float32")
        return [
            api.Finding(**of, candidate="xla", seconds=(2e-6, 3e-6), error=0.0),
            api.Finding(**of, candidate="cpu", seconds=(1e-6, 2e-6), error=1e-7),
            api.Finding(**of, candidate="gpu", error=0.5, reason="it is wrong"),
        ]

    def measure_operations(self, model, *, anew, progress):
        assert anew
        progress(0, 3, "linear")
        return self.findings

    def engine(self, model, **how):
        self.engines.append(how)
        plain = how["drafter"] == "none" or how["tree"] == "auto" and how["rows"] > 4
        shape = TreeShape(1, 0) if plain else TreeShape(6, 3)
        return types.SimpleNamespace(
            drafter=types.SimpleNamespace(shape=shape),
            by_load="no drafting" if plain else "trees of 6 nodes",
            max_tokens=512,
            room_for=lambda prompt: self.room,
            submit=lambda prompt, **request: FakeTicket(self, self.stream(model, prompt, **request)),
            close=lambda drain: self.engines.append("closed"),
            findings=lambda: ["a finding"] if how["tree"] == "auto" else [],
        )

    def create_app(self, engines, **how):
        self.served.append((list(engines), how))

    def page(self, engine, **how):
        self.pages.append(how)
        return types.SimpleNamespace(routes=["a route"])

    def bound(self, host, port):
        return [f"http://{host}:{port}"]

    def server(self, app, *, on_ready):
        return types.SimpleNamespace(run=lambda sockets: on_ready(sockets))

    def describe(self, path):
        if self.error:
            raise self.error
        return Description(
            folder=str(path),
            kind="EAGLE-1/2 head",
            format="safeailab or sglang",
            problem=self.problem,
            parameters=1234567,
            tensors=9,
            dtypes={"bfloat16": 1000000, "float32": 234567},
            files={"model.safetensors": 2500000},
            config={"hidden_size": 256, "rope": {"theta": 10000.0, "kind": "default"}, "sliding_window": None},
        )


@pytest.fixture
def fake(monkeypatch) -> Fake:
    fake = Fake()
    names = "load with_head generate stream describe convert convert_gguf quantize train regenerate default_target tune"
    more = "calibrate_head measure_operations profile tokenizer_of make_datastore tree_shape time_parts trace"
    for name in (*names.split(), *more.split(), "closest_draws", "fingerprints", "encode", "dtype_name"):
        monkeypatch.setattr(api, name, getattr(fake, name))
    monkeypatch.setattr(api, "keep_budgets", fake.kept.extend)
    monkeypatch.setattr(api, "operation_findings", lambda: fake.findings)
    monkeypatch.setattr(api, "Job", fake.job)
    monkeypatch.setattr(api, "Engine", fake.engine)
    monkeypatch.setattr(serving, "create_app", fake.create_app)
    monkeypatch.setattr(serving, "Server", fake.server)
    monkeypatch.setattr(serving, "bound", fake.bound)
    monkeypatch.setattr(ui, "Page", fake.page)
    monkeypatch.setattr(webbrowser, "open", fake.opened.append)
    for module in ("eagle_jax.evaluation.prompts", "eagle_jax.cli.chat"):
        monkeypatch.setattr(f"{module}.encode", fake.encode)
    return fake


@pytest.fixture
def run(monkeypatch):
    """Runs `eagle-jax` in this process: run("generate", "hi", input="...") -> result with exit_code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "200")
    runner = CliRunner()

    def run(*arguments: str, input: str | None = None):
        return runner.invoke(app, list(arguments), input=input)

    return run
