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
from eagle_jax.loading.dtypes import dtype_named, dtype_of, dtype_of_draft
from eagle_jax.loading.folders import folder_of_head, folders_of
from eagle_jax.loading.generation_config import generation_options
from eagle_jax.loading.model import Model
from eagle_jax.loading.operations import measure_at_load
from eagle_jax.models import layout
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme, schemes_of
from eagle_jax.platform import keep_programs, return_freed_memory
from eagle_jax.sharding import Sharding, place_all, placing, sharding_of, widened
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

    Without arguments it is SmolLM2-135M-Instruct, downloaded once (93 MB), with the EAGLE-3 head that comes with the
    package; without network the package's toy pair, `load("toy")`, which a line on stderr says. From here on compiled
    programs are kept on disk, unless JAX has a cache folder set, or EAGLE_JAX_COMPILATION_CACHE is "off". The
    first load on a GPU or TPU measures which candidate computes each operation fastest there, in half a minute at most,
    unless EAGLE_JAX_MEASURE is "off"; see docs/performance.md.

    Args:
        target: folder or hub name of a HuggingFace checkpoint (`config.json`, safetensors or `.bin`, tokenizer), a
            `.gguf` file, or the name of a published pair (`eagle-jax models` lists them). "toy" is the shipped pair, a
            small Llama that writes sums, mostly wrong ones. EAGLE_JAX_TARGET in the environment names another default.
        head: folder or hub name of its EAGLE-1, 2 or 3, P-EAGLE or DFlash head, or of its Medusa or Hydra heads, or the
            name of a pair; "mtp" is the layer for multi-token prediction in the target's own files; None is the pair's
            head, or none. The toy has an EAGLE-1 head, and an EAGLE-3 head, `head="eagle3"`.
        dtype: "float32", "bfloat16" or "float16", of weights that are floats and of activations; None keeps the
            target's stored one. Of GGUF files of quantized weights that is bfloat16. On CPUs it is float32 where
            embeddings stay quantized, or the CPU has no bfloat16 instructions; on GPUs without those, such as a T4, it
            is float16.
        target_config, head_config: entries that take the place of those in the target's `config.json`, or the head's,
            such as `{"rope_theta": 10000.0}`. `{"sliding_window": 512}` lets a head's attention see only the last 512
            rows of the text, which changes no text.
        mesh: devices to shard the model and its requests over: `"data:2,model:4"`, "auto" (all there are), a
            `jax.sharding.Mesh` with these axes, or a `sharding.Sharding`, which brings rules of one's own; None is one
            device. See docs/sharding.md.
        draft: folder or hub name of a small model of the same tokenizer, for `drafter="draft-model"`.
        datastore: file that `eagle-jax datastore` made, for `drafter="rest"`.
        quantize: what becomes of weights as they are read, those of head and draft model too. None keeps what the files
            hold, floats or quantized weights. "int8", "int4" (a scale for each 32 inputs), "int4-128", "int4-asym" and
            "int4-128-asym" (with zero points) quantize floats; files that are quantized to as many bits stay as they
            are. "none" makes floats of quantized files, "requantize:int8" quantizes them a second time. The output
            matrix becomes int8, or what a slash is followed by: "int4/int4", "int8/none". "draft:int8" quantizes head
            and draft model alone, which changes no text. See docs/quantisation.md.
        draft_dtype: the same for head and draft model, whose dtype changes no text either; None is the target's, but
            bfloat16 with a target in float32 on CPUs that have instructions for it: half of its own weights to read.
            "float32" keeps a head as it is, to train or to save it.
        chat_template: file with a Jinja template that takes the place of the model's own, or the name of one of several
            that it has.

    Raises:
        FileNotFoundError: a folder or file is not there.
        ValueError: a file is damaged, or holds what is not understood, or the head does not fit the target,
            or the mesh does not divide the target's heads or asks for more devices than there are, or `quantize` is not
            known, meets weights that are quantized to another width, or has groups that do not divide a matrix.
    """
    keep_programs()
    scheme, draft_scheme = schemes_of(quantize)
    # refused before anything is downloaded
    dtype_named(dtype, "dtype")
    dtype_named(draft_dtype, "draft_dtype")
    _check_entries(target_config, "target_config")
    _check_entries(head_config, "head_config")
    folder, head_folder = folders_of(target, head)
    if head_folder is None and head_config:
        raise ValueError("head_config was given, and the model has no head; name one with head= (--head)")
    sharding = None if mesh is None else sharding_of(mesh, read_target_config(folder, target_config))
    # these files are small: errors in them are raised before weights are read
    tokenizer = tokenizer_in(folder)
    if chat_template is not None:
        tokenizer = with_template(tokenizer, chat_template)
    generation = generation_options(folder)
    calibration = None if head_folder is None else read_prior(head_folder)
    stop_ids = _stop_ids(folder, tokenizer, target_config or {})
    lm = _load_target(folder, dtype_of(dtype), sharding, scheme, target_config)
    how: dict[str, Any] = dict(dtype=dtype_of_draft(draft_dtype, lm.dtype), scheme=draft_scheme)
    drafting = None if head_folder is None else load_head(head_folder, lm, changes=head_config, **how)
    ready = _target_for_decoding(lm, sharding)
    if sharding is None:
        measure_at_load(ready, _context(ready))
    return Model(
        target=ready,
        head=None if drafting is None else _head_for_decoding(drafting, sharding),
        tokenizer=tokenizer,
        stop_ids=tuple(id_ for id_ in stop_ids if 0 <= id_ < lm.config.vocab_size),  # others are never drawn
        context=_context(lm),
        sharding=sharding,
        draft=None if draft is None else _load_draft(resolve(draft), lm, tokenizer, sharding, **how),
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
    drafts_in = dtype_of_draft(draft_dtype, model.target.dtype)
    stored = dataclasses.replace(model.target, params=model.target.stored_params)
    folder = folder_of_head(head)
    calibration = read_prior(folder)
    loaded = load_head(folder, stored, dtype=drafts_in, changes=head_config, scheme=scheme)
    return dataclasses.replace(model, head=_head_for_decoding(loaded, model.sharding), calibration=calibration)


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
        one = next(row.one for row in HEAD_KINDS.values() if row.title == kind)
        raise ValueError(
            f"{folder} holds {one}, and was given as the target; expected a model there, and the head as head"
        ) from error


def _target_for_decoding(lm: LM, sharding: Sharding | None) -> LM:
    ready = _for_decoding(lm, lm.config.head_dims, sharding)
    return ready if sharding is None else sharding.put(ready, sharding.target)


def _for_decoding(model: Any, head_dim: int | tuple[int, ...], sharding: Sharding | None) -> Any:
    return_freed_memory()
    params = jax.block_until_ready(layout.for_decoding(model.params, head_dim, sharded=sharding is not None))
    return_freed_memory()
    return dataclasses.replace(model, params=params)


def _head_for_decoding(head: Any, sharding: Sharding | None) -> Any:
    """Lays a head out for decoding and then shards it, if asked to: a head is small, so it is read unsharded."""
    if sharding is None:
        return _for_decoding(head, head.head_dim, sharding)
    if head.layers is not None:
        params = place_all(head.params, placing(sharding, sharding.head, head.layers))
        config: Any = dataclasses.replace(head.config, layers=widened(head.layers, sharding.sizes))
        head = dataclasses.replace(head, params=params, config=config)
    return sharding.put(_for_decoding(head, head.head_dim, sharding), sharding.head)


def _stop_ids(folder: Path, tokenizer: Any, changes: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns end-of-text ids: those in `changes`, else the generation config's, else the config's or a GGUF
    file's, and the tokenizer's own.

    Raises:
        ValueError: one of the files is damaged, or an id is no whole number.
    """
    ids: set[int] = set(end_ids(folder)) if is_gguf(folder) else set()
    paths = (folder / "generation_config.json", folder / "config.json")
    files = [(path, read_json(path)) for path in paths if path.exists()]
    for where, entries in [("target_config", changes), *files]:
        eos_ids = text_part(entries).get("eos_token_id", entries.get("eos_token_id"))
        if eos_ids is not None:
            listed = eos_ids if isinstance(eos_ids, list) else [eos_ids]
            if not all(type(id_) is int for id_ in listed):
                raise ValueError(f"{where} has eos_token_id {eos_ids!r}; expected a whole number, or a list of them")
            ids.update(listed)
            break
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return tuple(sorted(ids))


def _context(target: LM) -> int:
    """Returns the number of tokens that the target can read.

    With YaRN, configs state the stretched length, or the original.
    """
    rope, context = target.config.rope, target.config.max_position_embeddings
    if rope.kind == "yarn" and rope.original_max_position_embeddings is not None:
        return max(context, round(rope.original_max_position_embeddings * rope.factor))
    return int(context * (rope.factor if rope.kind in ("linear", "dynamic") else 1.0))
