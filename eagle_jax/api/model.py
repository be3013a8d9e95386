"""Loading a target, its tokenizer and its draft head."""

import dataclasses
import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.config import LlamaConfig
from eagle_jax.converters import describe, known_pair, load_head, load_target, resolve, resolve_pair, target_config
from eagle_jax.models import layout
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import LM
from eagle_jax.models.target import Target
from eagle_jax.platform import multiplies_bfloat16
from eagle_jax.sharding import Sharding, place_all, placing, sharding_of, widened

PAIR = Path(str(importlib.resources.files("eagle_jax"))) / "pair"


@dataclasses.dataclass(frozen=True)
class Model:
    """A target with what it takes to talk to it, and the head that drafts for it.

    Attributes:
        target: the model whose text is generated.
        head: its draft head; None decodes plainly.
        tokenizer: HuggingFace tokenizer; None if the folder has none (prompts are token ids then).
        stop_ids: tokens that end an answer.
        context: most tokens of prompt and answer together.
        over: the devices that it is spread over; None is one device.
    """

    target: Target
    head: DraftHead | None
    tokenizer: Any
    stop_ids: tuple[int, ...]
    context: int
    over: Sharding | None = None


def load(
    target: str | Path | None = None,
    head: str | Path | None = None,
    *,
    dtype: Any = None,
    head_config: Mapping[str, Any] | None = None,
    mesh: Any = None,
) -> Model:
    """Loads a target model and its draft head.

    Without arguments it is the pair that comes with the package: a small Llama that solves grade-school sums, and its
    head.

    Args:
        target: folder or hub name of a HuggingFace checkpoint (`config.json`, safetensors or `.bin`, tokenizer), or the
            name of a published pair (`eagle-jax models` lists them).
        head: folder or hub name of its EAGLE-1, 2 or 3 head; None is the pair's head, the shipped head if no target is
            named either, or else plain decoding.
        dtype: "float32", "bfloat16" or "float16"; None keeps the stored one, but is float32 on CPUs that have no
            bfloat16 instructions.
        head_config: entries that take the place of those in the head's `config.json`, such as
            `{"rope_theta": 10000.0}`.
        mesh: devices to spread the model and its requests over: `"data:2,model:4"`, "auto" (all there are), a
            `jax.sharding.Mesh` with these axes, or a `sharding.Sharding`, which brings rules of one's own; None is one
            device. docs/scaling.md tells more.

    Raises:
        FileNotFoundError: a folder or file is not there.
        ValueError: a file is damaged, or holds what is not understood, or the head does not fit the target,
            or the mesh does not divide the target's heads or asks for more devices than there are.
    """
    wanted = dtype_of(dtype)
    folder, head_folder = _folders(target, head)
    over = None if mesh is None else sharding_of(mesh, target_config(folder))
    lm = _load_target(folder, wanted, over)
    tokenizer = tokenizer_in(folder)
    drafting = None if head_folder is None else load_head(head_folder, lm, dtype=wanted, changes=head_config)
    return Model(
        target=_for_decoding(lm, lm.config) if over is None else over.put(_for_decoding(lm, lm.config), over.target),
        head=None if drafting is None else _head_for_decoding(drafting, over),
        tokenizer=tokenizer,
        stop_ids=_stop_ids(folder, tokenizer),
        context=_context(lm),
        over=over,
    )


def _folders(target: str | Path | None, head: str | Path | None) -> tuple[Path, Path | None]:
    """Where target and head are, downloaded if need be; a folder goes before a pair of the same name."""
    if target is None:
        return PAIR / "target", PAIR / "head" if head is None else resolve(head)
    pair = known_pair(target)
    if pair is not None and head is None:
        return resolve_pair(pair)
    return resolve(target if pair is None else pair.target), None if head is None else resolve(head)


def _load_target(folder: Path, dtype: Any, over: Sharding | None) -> LM:
    try:
        return load_target(folder, dtype=dtype, over=over)
    except ValueError as error:
        kind = describe(folder).kind
        if not kind.endswith("head"):
            raise
        raise ValueError(
            f"{folder} holds an {kind}, and was given as the target; expected a model there, and the head as head"
        ) from error


def _for_decoding(model: Any, config: LlamaConfig) -> Any:
    return dataclasses.replace(model, params=layout.for_decoding(model.params, config.head_dim))


def _head_for_decoding(head: Any, over: Sharding | None) -> Any:
    """A head is read whole, which is one layer, and then spread."""
    if over is None:
        return _for_decoding(head, head.config.layers)
    params = place_all(head.params, placing(over, over.head, head.config.layers))
    config = dataclasses.replace(head.config, layers=widened(head.config.layers, over.sizes))
    return over.put(_for_decoding(dataclasses.replace(head, params=params, config=config), config.layers), over.head)


def dtype_of(dtype: Any) -> Any:
    """The dtype that `load` was asked for; None keeps the stored one, which a CPU without bfloat16 does not."""
    if dtype is None:
        return jnp.float32 if jax.default_backend() == "cpu" and not multiplies_bfloat16() else None
    known = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
    for name, value in known.items():
        if dtype == name or not isinstance(dtype, str) and dtype == value:
            return value
    raise ValueError(f"dtype={dtype!r} is not known; expected one of {', '.join(known)}")


def tokenizer_in(folder: Path) -> Any:
    """The tokenizer of a model folder; None if it has none."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _stop_ids(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """End-of-text ids: the generation config's, else the config's, and the tokenizer's own."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        stated = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        if stated is not None:
            ids.update(stated if isinstance(stated, list) else [stated])
            break
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return tuple(sorted(ids))


def _context(target: LM) -> int:
    rope = target.config.rope
    stretch = rope.factor if rope.kind in ("linear", "dynamic") else 1.0
    return int(target.config.max_position_embeddings * stretch)
