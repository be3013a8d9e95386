"""Loading a target, its tokenizer and its draft head."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.converters import (
    describe,
    load_head,
    load_target,
    resolve,
)
from eagle_jax.converters import target_config as read_target_config
from eagle_jax.converters.families.lookup import text_part
from eagle_jax.converters.files import is_gguf, read_json
from eagle_jax.converters.gguf.config import end_ids
from eagle_jax.drafters.rest import Datastore
from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.loading.calibration import read_prior
from eagle_jax.loading.datastore import read_datastore
from eagle_jax.loading.dtypes import draft_dtype_of, dtype_named, dtype_of
from eagle_jax.loading.folders import folder_of_head, folders_of
from eagle_jax.loading.generation_config import generation_options
from eagle_jax.loading.model import Model
from eagle_jax.loading.operations import measure_at_load
from eagle_jax.models import layout
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme, schemes_of
from eagle_jax.platform import keep_programs, return_freed_memory
from eagle_jax.sharding import Sharding, place_all, placing, sharding_of, with_repeated_kv_heads
from eagle_jax.text.tokenizers import refuse_other_tokenizer, tokenizer_in, with_template


def load(
    target: str | Path | None = None,
    head: str | Path | None = None,
    *,
    dtype: Any = None,
    target_config: Mapping[str, Any] | None = None,
    head_config: Mapping[str, Any] | None = None,
    mesh: Any = None,
    draft: str | Path | None = None,
    datastore: str | Path | None = None,
    quantize: str | Scheme | None = None,
    draft_dtype: Any = None,
    chat_template: str | Path | None = None,
) -> Model:
    """Loads a target model and its draft head.

    The default is SmolLM2-135M-Instruct, downloaded once (93 MB), with the EAGLE-3 head in the package; without a
    network the package's toy pair, `load("toy")`, with a line on stderr. Compiled programs are kept on disk from then
    on, unless JAX has its own cache folder or EAGLE_JAX_COMPILATION_CACHE is "off". The first load on a GPU or TPU
    measures which implementation of each operation is fastest, for at most half a minute, unless EAGLE_JAX_MEASURE is
    "off"; see docs/performance.md.

    Args:
        target: folder or hub name of a HuggingFace checkpoint (`config.json`, safetensors or `.bin`, tokenizer), a
            `.gguf` file, or the name of a published pair (`eagle-jax models` lists them). "toy" is the shipped pair, a
            small Llama that writes sums, mostly wrong ones. EAGLE_JAX_TARGET in the environment names another default.
        head: folder or hub name of its EAGLE-1, 2 or 3, P-EAGLE or DFlash head, or of its Medusa or Hydra heads, or the
            name of a pair; "mtp" is the layer for multi-token prediction in the target's own files; None is the pair's
            head, or none. The toy has an EAGLE-1 head, and an EAGLE-3 head, `head="eagle3"`.
        dtype: "float32", "bfloat16" or "float16", for float weights and activations. The default is the target's stored
            dtype (bfloat16 for quantized GGUF files), but float32 on CPUs if embeddings stay quantized or the CPU has
            no bfloat16 instructions, and float16 on GPUs without bfloat16, such as a T4.
        target_config, head_config: entries that replace those in the target's or the head's `config.json`, such as
            `{"rope_theta": 10000.0}`. `{"sliding_window": 512}` lets a head's attention see only the last 512 rows of
            the text, which changes no text.
        mesh: devices to shard the model and its requests over: `"data:2,model:4"`, "auto" (all devices), a
            `jax.sharding.Mesh` with these axes, or a `sharding.Sharding` with rules of your own; None is one device.
            See docs/sharding.md.
        draft: folder or hub name of a small model of the same tokenizer, for `drafter="draft-model"`.
        datastore: file that `eagle-jax datastore` made, for `drafter="rest"`.
        quantize: type to convert weights to while loading, including those of head and draft model. None keeps what the
            files hold, floats or quantized weights. "int8", "int4" (a scale for each 32 inputs), "int4-128",
            "int4-asym" and "int4-128-asym" (with zero points) quantize floats; files that are quantized to as many bits
            stay as they are. "none" converts quantized files to floats, "requantize:int8" quantizes them again. The
            output matrix becomes int8, or the type after a slash: "int4/int4", "int8/none". "draft:int8" quantizes only
            head and draft model, which changes no text. See docs/quantisation.md.
        draft_dtype: dtype of head and draft model, which changes no text either. The default is the target's, but
            bfloat16 with a float32 target on CPUs with bfloat16 instructions, which halves the bytes to read. "float32"
            keeps a head's precision, to train or to save it.
        chat_template: file with a Jinja template to use instead of the model's, or the name of one of its templates.

    Raises:
        FileNotFoundError: a folder or file is missing.
        ValueError: a file is damaged or not supported; the head does not fit the target; the mesh does not divide the
            target's heads or needs more devices than there are; or `quantize` is unknown, meets weights that are
            quantized to another width, or has groups that do not divide a matrix.
    """
    keep_programs()
    scheme, draft_scheme = schemes_of(quantize)
    # checked before anything is downloaded
    dtype_named(dtype, "dtype")
    dtype_named(draft_dtype, "draft_dtype")
    _check_entries(target_config, "target_config")
    _check_entries(head_config, "head_config")
    folder, head_folder = folders_of(target, head)
    if head_folder is None and head_config:
        raise ValueError("head_config was given, and the model has no head; name one with head= (--head)")
    sharding = None if mesh is None else sharding_of(mesh, read_target_config(folder, target_config))
    # these files are small: their errors are raised before weights are read
    tokenizer = tokenizer_in(folder)
    if chat_template is not None:
        tokenizer = with_template(tokenizer, chat_template)
    generation = generation_options(folder)
    calibration = None if head_folder is None else read_prior(head_folder)
    stop_ids = _stop_ids(folder, tokenizer, target_config or {})
    lm = _load_target(folder, dtype_of(dtype), sharding, scheme, target_config)
    draft_options: dict[str, Any] = dict(dtype=draft_dtype_of(draft_dtype, lm.dtype), scheme=draft_scheme)
    draft_head = None if head_folder is None else load_head(head_folder, lm, changes=head_config, **draft_options)
    decoding_lm = _target_for_decoding(lm, sharding)
    if sharding is None:
        measure_at_load(decoding_lm, _context(decoding_lm))
    return Model(
        target=decoding_lm,
        head=None if draft_head is None else _head_for_decoding(draft_head, sharding),
        tokenizer=tokenizer,
        stop_ids=tuple(id_ for id_ in stop_ids if 0 <= id_ < lm.config.vocab_size),  # other ids are never sampled
        context=_context(lm),
        sharding=sharding,
        draft=None if draft is None else _load_draft(resolve(draft), lm, tokenizer, sharding, **draft_options),
        datastore=None if datastore is None else _load_datastore(datastore, lm, tokenizer),
        generation=generation,
        calibration=calibration,
    )


def with_head(
    model: Model,
    head: str | Path,
    *,
    head_config: Mapping[str, Any] | None = None,
    quantize: str | Scheme | None = None,
    draft_dtype: Any = None,
) -> Model:
    """Returns the same model with another head, from a folder or the hub; the arguments are as in `load`."""
    _, scheme = schemes_of(quantize)
    if not isinstance(model.target, LM):
        raise ValueError("heads are loaded for targets of this package; give a target of your own its head yourself")
    dtype = draft_dtype_of(draft_dtype, model.target.dtype)
    target = dataclasses.replace(model.target, params=model.target.stored_params)
    folder = folder_of_head(head)
    calibration = read_prior(folder)
    new_head = load_head(folder, target, dtype=dtype, changes=head_config, scheme=scheme)
    return dataclasses.replace(model, head=_head_for_decoding(new_head, model.sharding), calibration=calibration)


def _check_entries(changes: Any, name: str) -> None:
    if not isinstance(changes, Mapping | None):
        raise ValueError(f"{name}={changes!r}; expected entries by name, such as {{'rope_theta': 10000.0}}")


def _load_draft(
    folder: Path, target: LM, tokenizer: Any, sharding: Sharding | None, *, dtype: Any, scheme: Scheme | None
) -> LM:
    """Loads a small model. Raises ValueError if its token ids are not the target's."""
    refuse_other_tokenizer(tokenizer, tokenizer_in(folder), f"the draft model in {folder}")
    draft = _load_target(folder, dtype, sharding, scheme)
    if draft.config.vocab_size > target.config.vocab_size:
        raise ValueError(
            f"the draft model in {folder} has {draft.config.vocab_size} tokens and the target "
            f"{target.config.vocab_size}; expected one with the target's tokenizer"
        )
    return _target_for_decoding(draft, sharding)


def _load_datastore(path: str | Path, target: LM, tokenizer: Any) -> Datastore:
    """Loads a datastore. Raises ValueError if its texts have tokens that the target does not have."""
    store, size = read_datastore(path, tokenizer), target.config.vocab_size
    largest = int(jnp.max(store.tokens, initial=0))
    if largest >= size:
        raise ValueError(
            f"{path} holds token {largest} and the target has {size} tokens; make one with the target's tokenizer"
        )
    return store


def _load_target(
    folder: Path,
    dtype: Any,
    sharding: Sharding | None,
    scheme: Scheme | None,
    changes: Mapping[str, Any] | None = None,
) -> LM:
    try:
        return load_target(folder, dtype=dtype, sharding=sharding, scheme=scheme, changes=changes)
    except ValueError as error:
        kind = describe(folder).kind
        if not kind.endswith(("head", "heads")):
            raise
        head_name = next(row.with_article for row in HEAD_KINDS.values() if row.title == kind)
        raise ValueError(
            f"{folder} holds {head_name}, and was given as the target; expected a model there, and the head as head"
        ) from error


def _target_for_decoding(lm: LM, sharding: Sharding | None) -> LM:
    lm = _for_decoding(lm, lm.config.head_dims, sharding)
    return lm if sharding is None else sharding.put(lm, sharding.target)


def _for_decoding(model: Any, head_dim: int | tuple[int, ...], sharding: Sharding | None) -> Any:
    return_freed_memory()
    params = jax.block_until_ready(layout.for_decoding(model.params, head_dim, sharded=sharding is not None))
    return_freed_memory()
    return dataclasses.replace(model, params=params)


def _head_for_decoding(head: Any, sharding: Sharding | None) -> Any:
    """Converts a head to the layout for decoding, and shards it only then: a head fits on one device."""
    if sharding is None:
        return _for_decoding(head, head.head_dim, sharding)
    if head.layers is not None:
        params = place_all(head.params, placing(sharding, sharding.head, head.layers))
        config: Any = dataclasses.replace(head.config, layers=with_repeated_kv_heads(head.layers, sharding.sizes))
        head = dataclasses.replace(head, params=params, config=config)
    return sharding.put(_for_decoding(head, head.head_dim, sharding), sharding.head)


def _stop_ids(folder: Path, tokenizer: Any, changes: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the ids that end a text: from `changes`, else `generation_config.json`, else `config.json`, together with
    those of a GGUF file and the tokenizer's.

    Raises:
        ValueError: one of the files is damaged, or an id is not an integer.
    """
    ids: set[int] = set(end_ids(folder)) if is_gguf(folder) else set()
    paths = (folder / "generation_config.json", folder / "config.json")
    files = [(path, read_json(path)) for path in paths if path.exists()]
    for where, entries in [("target_config", changes), *files]:
        value = text_part(entries).get("eos_token_id", entries.get("eos_token_id"))
        if value is not None:
            eos_ids = value if isinstance(value, list) else [value]
            if not all(type(id_) is int for id_ in eos_ids):
                raise ValueError(f"{where} has eos_token_id {value!r}; expected a whole number, or a list of them")
            ids.update(eos_ids)
            break
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return tuple(sorted(ids))


def _context(target: LM) -> int:
    """Returns the target's context in tokens; with YaRN, configs state either the stretched or the original one."""
    rope, length = target.config.rope, target.config.max_position_embeddings
    if rope.kind == "yarn" and rope.original_max_position_embeddings is not None:
        return max(length, round(rope.original_max_position_embeddings * rope.factor))
    return int(length * (rope.factor if rope.kind in ("linear", "dynamic") else 1.0))
