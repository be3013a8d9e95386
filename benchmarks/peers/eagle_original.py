"""The original PyTorch EAGLE as methods, in a process of its own, with the Python and packages that it needs."""

import contextlib
import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import eagle_jax
from benchmarks.common.turns import Answer, Method
from benchmarks.common.worker import Worker
from eagle_jax.converters import save_head, save_target
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.eagle import Head
from eagle_jax.models.eagle3 import Head3
from eagle_jax.models.lm import LM

WORKER = pathlib.Path(__file__).with_name("eagle_worker.py")


@contextlib.contextmanager
def methods(
    checkout: pathlib.Path,
    model: eagle_jax.Model,
    new_tokens: int,
    tree: tuple[int, ...],
    *,
    python: str = sys.executable,
    packages: str | None = None,
) -> Iterator[dict[str, Method]]:
    """Plain decoding and a dynamic tree, of a pair that is written in the formats that the original reads.

    Args:
        python: that runs it.
        packages: folder of packages that it finds before all others.

    Raises:
        ValueError: the folder is no checkout, or the original would not do with the head what it was trained for.
        RuntimeError: it did not start, or ended when it was asked; with its last line.
    """
    if not (checkout / "eagle").exists():
        raise ValueError(f"{checkout} holds no folder eagle; give the folder of a clone")
    target, head = (dataclasses.replace(part, params=part.stored_params) for part in (model.target, model.head))
    check_head(head, target)
    kind = "eagle3" if isinstance(head, Head3) else "eagle1"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_target(target, folder / "target")
        save_head(head, folder / "head", format="safeailab", target=target)
        arguments = checkout.resolve(), folder / "target", folder / "head", model.dtype, kind, *tree
        environment = {"PYTHONPATH": packages or ""}  # this project's packages are not theirs to find
        worker = Worker("the original EAGLE", [python, str(WORKER), *map(str, arguments)], environment)

        def method(way: str) -> Method:
            def run(prompt: list[int]) -> Answer:
                slots = len(prompt) + new_tokens + 256
                answer = worker.ask({"method": way, "prompt": prompt, "tokens": new_tokens, "slots": slots})
                # it gives a few tokens more than it was asked for
                return Answer(answer["tokens"][:new_tokens], answer["committed"], answer["steps"], answer["seconds"])

            return run

        with contextlib.closing(worker):
            yield {"original EAGLE, plain": method("plain"), "original EAGLE": method("eagle")}


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
