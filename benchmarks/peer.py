"""Programs of others as methods that take turns with ours: each in a process of its own, with what it needs."""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from chart import PUBLISHED
from common import parser, prompts
from synthetic import NAMES, Shape, ready, stored
from turns import Method, Request

import eagle_jax
from eagle_jax.converters import load_head, load_target, save_target
from eagle_jax.loading.folders import SHIPPED_HEADS, folders_of, tokenizer_of
from eagle_jax.models.lm import LM

WORKERS = pathlib.Path(__file__).parent / "workers"
HOLDS = {"eagle_original.py": "eagle", "gpt_fast.py": "generate.py"}  # what a checkout has, by the worker that runs it


def arguments(question: str, needs: str) -> argparse.ArgumentParser:
    """What every script that asks another program takes."""
    known = parser(question, new_tokens=128, must_ask=False)
    known.epilog = needs
    known.add_argument("--checkout", type=pathlib.Path, required=True, help="folder with the other program's code")
    known.add_argument("--python", default=sys.executable, help="what runs it (default: this Python)")
    known.add_argument("--packages", default=None, help="folder of packages that it finds before all others")
    known.add_argument("--shape", default=None, choices=NAMES, help="a synthetic pair instead")
    known.add_argument("--dtype", default="float32", help="of the weights (default: %(default)s)")
    known.add_argument("--repeats", type=int, default=3)
    known.add_argument("--folder", type=pathlib.Path, default=None, help="where weights are written and stay")
    return known


@dataclasses.dataclass(frozen=True)
class Compared:
    """What both programs run: a pair as files have it, the same ready to decode with, and prompts."""

    target: LM
    head: Any
    model: eagle_jax.Model
    asked: list[list[int]]


def compared(options: argparse.Namespace) -> Compared:
    """The synthetic pair of a shape, or else the pair that was named, with questions as prompts."""
    count = options.limit or 4
    if options.shape is not None:
        chart, target, head = stored(Shape.of(options.shape), PUBLISHED, dtype=options.dtype)
        asked = [chart.prompt(64, seed) for seed in range(count)]
        return Compared(target, head, ready(_kept(target), _kept(head)), asked)
    if options.questions is None:
        raise ValueError("there is nothing to ask: give --questions with a file of questions, or --shape")
    folder, head_folder = folders_of(options.target, options.head or SHIPPED_HEADS["eagle1"])
    target = load_target(folder, dtype=options.dtype)
    head = load_head(head_folder, target, dtype=options.dtype)
    model = dataclasses.replace(ready(_kept(target), _kept(head)), tokenizer=tokenizer_of(options.target))
    return Compared(target, head, model, prompts(model, options.questions, count, options.new_tokens))


def _kept(model: Any) -> Any:
    """The same weights in dictionaries of their own, which may be emptied."""

    def copied(params: dict[str, Any]) -> dict[str, Any]:
        return {name: copied(node) if isinstance(node, dict) else node for name, node in params.items()}

    return dataclasses.replace(model, params=copied(model.params))


def write_target(target: LM, folder: pathlib.Path) -> None:
    """A folder as older programs want it: an output matrix of its own, and an index even of a single file."""
    if target.config.tie_word_embeddings:
        output = {"lm_head": {"weight": target.params["embed_tokens"]["embedding"]}}
        config = dataclasses.replace(target.config, tie_word_embeddings=False)
        target = dataclasses.replace(target, params=target.params | output, config=config)
    save_target(target, folder)
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        from safetensors import safe_open

        with safe_open(folder / "model.safetensors", framework="np") as file:
            names = list(file.keys())
        index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}))


@contextlib.contextmanager
def folder_for(options: argparse.Namespace) -> Iterator[pathlib.Path]:
    """Where weights are written: the folder that was given, or one that goes in the end."""
    folder = options.folder or pathlib.Path(tempfile.mkdtemp(prefix="peer-"))
    try:
        yield folder
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


class Worker:
    """Another program, started and asked.

    Args:
        script: of `workers/`.
        given: its arguments.

    Raises:
        ValueError: the checkout is none of it.
        RuntimeError: it did not start, or broke down when it was asked; with its last line.
    """

    def __init__(self, options: argparse.Namespace, script: str, *given: object):
        if not (options.checkout / HOLDS[script]).exists():
            raise ValueError(f"--checkout {options.checkout} holds no {HOLDS[script]}; give the folder of a clone")
        self._errors = tempfile.TemporaryFile("w+")
        environment = dict(os.environ)
        # Neither this project nor its packages are theirs to find.
        environment["PYTHONPATH"] = options.packages or ""
        command = [options.python, str(WORKERS / script), str(options.checkout.resolve()), *map(str, given)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        self.name = script.removesuffix(".py")
        self.hello = self._answer()

    def method(self, way: str, new_tokens: int) -> Method:
        """One of its ways to generate."""

        def run(prompt: list[int]) -> Request:
            room = len(prompt) + new_tokens + 256
            made = self._ask({"method": way, "prompt": prompt, "tokens": new_tokens, "room": room})
            return Request(made["tokens"], made["length"], made["seconds"], float("nan"))

        return run

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # it was not there any more to read its last question
                stream.close()

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):  # the answer tells why
            print(json.dumps(what), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        said = [line.strip() for line in self._errors if line.strip()]
        self.close()
        raise RuntimeError(f"{self.name} ended, and the last that it said was: {said[-1] if said else 'nothing'}")
