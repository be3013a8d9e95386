"""The original PyTorch EAGLE and gpt-fast as methods: each in a process of its own, with the Python that it needs."""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import eagle_jax
from benchmarks.common.turns import Answer, Method
from eagle_jax.config import LlamaConfig
from eagle_jax.converters import save_head, save_target
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM

WORKERS = pathlib.Path(__file__).parent / "workers"
HOLDS = {"eagle_original.py": "eagle", "gpt_fast.py": "generate.py"}  # what a checkout has, by the worker that runs it


def eagle(
    checkout: pathlib.Path, model: eagle_jax.Model, new_tokens: int, tree: tuple[int, ...], **how: Any
) -> contextlib.AbstractContextManager[dict[str, Method]]:
    """The original EAGLE, plain and with a dynamic tree; `how` is as for `_methods`."""
    target, head = (dataclasses.replace(part, params=part.stored_params) for part in (model.target, model.head))
    check_head(head, target)
    kind = "eagle3" if isinstance(head, Head3) else "eagle1"

    def files(folder: pathlib.Path) -> tuple[object, ...]:
        write_target(target, folder / "target")
        save_head(head, folder / "head", format="safeailab", target=target)
        return folder / "target", folder / "head", model.dtype, kind, *tree

    ways = {"original EAGLE, plain": "plain", "original EAGLE": "eagle"}
    return _methods("eagle_original.py", checkout, files, ways, new_tokens, **how)


def gpt_fast(
    checkout: pathlib.Path, model: eagle_jax.Model, new_tokens: int, *, compiled: bool = True, **how: Any
) -> contextlib.AbstractContextManager[dict[str, Method]]:
    """gpt-fast, its decoding step compiled by PyTorch or not; `how` is as for `_methods`."""
    target = dataclasses.replace(model.target, params=model.target.stored_params)
    sizes = json.dumps(described(target.config))

    def files(folder: pathlib.Path) -> tuple[object, ...]:
        write_target(target, folder / "target")
        return folder / "target", sizes, model.dtype, "compile" if compiled else "eager"

    return _methods("gpt_fast.py", checkout, files, {"gpt-fast": "plain"}, new_tokens, **how)


@contextlib.contextmanager
def _methods(
    script: str,
    checkout: pathlib.Path,
    files: Any,
    ways: dict[str, str],
    new_tokens: int,
    *,
    python: str = sys.executable,
    packages: str | None = None,
) -> Any:
    """Methods by name, of a worker that runs `script` with the arguments that `files(folder)` returns.

    Args:
        python: that runs it.
        packages: folder of packages that it finds before all others.
    """
    if not (checkout / HOLDS[script]).exists():
        raise ValueError(f"{checkout} holds no {HOLDS[script]}; give the folder of a clone")
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(WORKERS / script), str(checkout.resolve()), *map(str, files(pathlib.Path(folder)))]
        worker = Worker(command, packages)
        try:
            yield {name: worker.method(way, new_tokens) for name, way in ways.items()}
        finally:
            worker.close()


class Worker:
    """A process that answers a line of JSON with another.

    Raises:
        RuntimeError: it did not start, or ended when it was asked; with its last line.
    """

    def __init__(self, command: list[str], packages: str | None):
        self._errors = tempfile.TemporaryFile("w+")
        environment = os.environ | {"PYTHONPATH": packages or ""}  # this project's packages are not theirs to find
        pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self._answer()  # its versions

    def method(self, way: str, new_tokens: int) -> Method:
        def run(prompt: list[int]) -> Answer:
            slots = len(prompt) + new_tokens + 256
            request = {"method": way, "prompt": prompt, "tokens": new_tokens, "slots": slots}
            with contextlib.suppress(BrokenPipeError):  # the answer says why
                print(json.dumps(request), file=self._process.stdin, flush=True)
            answer = self._answer()
            return Answer(answer["tokens"][:new_tokens], answer["accepted"], answer["seconds"])

        return run

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # it ended before it read its last question
                stream.close()

    def _answer(self) -> dict[str, Any]:
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        errors = [line.strip() for line in self._errors if line.strip()]
        self.close()
        raise RuntimeError(f"{self._process.args[1]} ended; its last line: {errors[-1] if errors else 'none'}")


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


def check_head(head: AnyHead, target: LM) -> None:
    """Refuses an EAGLE-1 head with a draft vocabulary, which the original does not know, and an EAGLE-3 head that does
    not read what the original gives to all of them: layers 2, n / 2 and n - 3, in order.
    """
    if isinstance(head, Head) and head.vocabulary is not None:
        raise ValueError(
            f"the head drafts {head.draft_vocab_size} tokens, and the original knows no draft vocabulary for "
            "EAGLE-1 heads; give --head one that drafts all tokens, or --shape"
        )
    layers = target.config.num_hidden_layers
    theirs = tuple(sorted({2, layers // 2, layers - 3}))
    if isinstance(head, Head3) and head.taps != theirs:
        raise ValueError(
            f"the head reads the layers {head.taps} of {layers}, and the original would give it {theirs}; take "
            "one that reads those, or an EAGLE-1 head"
        )


def described(config: LlamaConfig) -> dict[str, object]:
    """The dimensions by gpt-fast's names.

    Raises:
        ValueError: it has no model of this kind.
    """
    if config.head_dim * config.num_attention_heads != config.hidden_size or config.rope.kind != "default":
        raise ValueError(
            f"gpt-fast knows heads of hidden_size / heads and plain rotary positions; the target has head_dim "
            f"{config.head_dim} and rope {config.rope.kind!r}, so choose another"
        )
    return {
        "block_size": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "n_layer": config.num_hidden_layers,
        "n_head": config.num_attention_heads,
        "n_local_heads": config.num_key_value_heads,
        "dim": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "rope_base": config.rope.theta,
        "norm_eps": config.rms_norm_eps,
    }
