"""Reads and writes EAGLE-1/2, EAGLE-3 and P-EAGLE heads, in their authors' format, SGLang's and speculators'."""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, EagleConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import names, quant_config, reading
from eagle_jax.converters.families.config import config_to_hf
from eagle_jax.converters.files import Weights, read_json
from eagle_jax.converters.heads import eagle_formats, window
from eagle_jax.converters.heads.eagle_config import eagle1_config, eagle3_config
from eagle_jax.converters.heads.eagle_entries import Verifier, entries_for
from eagle_jax.converters.heads.eagle_formats import D2T, EMBEDDING, OUTPUT, T2D, Spelling
from eagle_jax.converters.heads.entries import KIND, TAPS, check_method, read_entries
from eagle_jax.converters.heads.kinds import CheckedHead
from eagle_jax.converters.heads.vocabulary import mapping_tensors, read_vocabulary
from eagle_jax.converters.hf.keys import log
from eagle_jax.converters.overrides import with_changes
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.converters.writing import MODEL_FILE, write_folder
from eagle_jax.head_kinds import HEAD_KINDS
from eagle_jax.models.draft_head import DraftHead
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import Scheme
from eagle_jax.ops.quantized import dense

FORMATS = tuple(eagle_formats.FORMATS)
DEFAULT_TAPS = "2, N//2 and N - 3 of a target of N layers"
MAX_RESIZE = 1024  # tokens by which the target's vocabulary may differ from the vocabulary that a head was trained for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A head's folder, checked against its config by name, shape and dtype; no weight has been read.

    Attributes:
        weights: its files.
        spelling: names of its tensors.
        config: its configuration; `own_embedding` is true if an EAGLE-3 head's files hold an embedding.
        vocabulary: target ids of the draft vocabulary, ascending; None for the target's whole vocabulary.
        taps_stated: whether its config names the tapped layers; otherwise they are the default.
    """

    weights: Weights
    spelling: Spelling
    config: EagleConfig | Eagle3Config
    vocabulary: np.ndarray | None
    taps_stated: bool

    @property
    def dtype(self) -> str:
        """The dtype of the stored `fc` weight; of a quantized one the dtype before quantization."""
        return names.stored_dtype(self.weights, f"{self.spelling.fc}.weight").name


def kind_of(info: Mapping[str, TensorInfo]) -> str | None:
    spelling = eagle_formats.spelling_of(info)
    if spelling is None:
        return None
    return "eagle1" if not spelling.eagle3 else "peagle" if eagle_formats.MASK in info else "eagle3"


def format_of(entries: Mapping[str, Any]) -> str:
    return "speculators" if KIND in entries else "safeailab or sglang"


def check(weights: Weights, target: LlamaConfig | None) -> CheckedHead:
    checkpoint = read_head(weights, (0, 1, 2) if target is None else default_taps(target.num_hidden_layers), {})
    needs_target = checkpoint.spelling.eagle3 and not checkpoint.taps_stated and target is None
    slots = names.slots(checkpoint.spelling.rules, shapes(checkpoint.config))
    return CheckedHead(checkpoint.config, slots, MODEL_FILE, {"taps": DEFAULT_TAPS} if needs_target else {})


def load(
    weights: Weights, target: LM, dtype: Any, changes: Mapping[str, Any], scheme: Scheme | None = None
) -> DraftHead:
    checkpoint = read_head(weights, default_taps(target.config.num_hidden_layers), changes)
    target_config = target.config
    checkpoint = _resized(checkpoint, target_config.vocab_size)
    check_fit(checkpoint, target_config.vocab_size, target_config.hidden_size, target_config.num_hidden_layers)
    config, embedding = checkpoint.config, None
    if isinstance(config, Eagle3Config) and config.own_embedding:
        embedding = own_embedding(weights, config, target)
        config = dataclasses.replace(config, own_embedding=embedding is not None)
    load_dtype = names.stored_dtype(weights, f"{checkpoint.spelling.fc}.weight") if dtype is None else dtype
    param_shapes = {name: value for name, value in stored_shapes(config, weights).items() if name != "embed_tokens"}
    params = reading.read_params(weights, checkpoint.spelling.rules, param_shapes, load_dtype, scheme=scheme)
    if embedding is not None:
        params["embed_tokens"] = {"embedding": jnp.asarray(embedding).astype(load_dtype)}
    ids = None if checkpoint.vocabulary is None else jnp.asarray(checkpoint.vocabulary, jnp.int32)
    if "lm_head" in shapes(config) and "lm_head" not in param_shapes:
        params["lm_head"] = {"weight": dense(target.output_matrix).astype(load_dtype)}
    return HEAD_KINDS[config.kind].get("network")(params=params, config=config, vocabulary=ids)


def save(head: DraftHead, folder: pathlib.Path, format: str | None, target: LM | None, target_name: str | None) -> None:
    format = eagle_formats.default_format(head.config) if format is None else format
    layout = eagle_formats.format_named(format)
    verifier = verifier_for(target, target_name)
    is_eagle1 = isinstance(head.config, EagleConfig)
    rules = (layout.eagle1 if is_eagle1 else layout.eagle3).rules
    entries = entries_for(format, head.config, head.dtype.name, verifier)
    entries |= quant_config.params_entry(rules, head.stored_params)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        yield from names.tensors(rules, head.stored_params)
        if head.vocabulary is not None:
            yield from mapping_tensors(np.asarray(head.vocabulary), head.config.layers.vocab_size)
        if is_eagle1 and target is not None and format == "safeailab":
            yield EMBEDDING, np.asarray(target.table.astype(head.dtype))

    write_folder(folder, entries, tensors())


def verifier_for(target: LM | None, name: str | None) -> Verifier:
    """Returns the target as a speculators config names it."""
    if target is None:
        return Verifier(name=name)
    entries = config_to_hf(target.config)
    context = entries["max_position_embeddings"]
    return Verifier(name=name, architectures=tuple(entries["architectures"]), max_position_embeddings=context)


def read_head(weights: Weights, default_taps: tuple[int, ...] | None, changes: Mapping[str, Any]) -> Checkpoint:
    """Checks the files of a head against its `config.json`.

    Args:
        default_taps: tapped layers of an EAGLE-3 head whose config names none; None if there is no default.
        changes: entries that replace those in `config.json`.

    Raises:
        ValueError: the folder holds no head, or an unsupported one.
    """
    folder, info = weights.folder, weights.info
    path = folder / "config.json"
    entries = with_changes(read_json(path), window.config_entries(changes))
    spelling = eagle_formats.spelling_of(info)
    if spelling is None:
        check_method(entries)
        is_target = "model.embed_tokens.weight" in info
        raise ValueError(
            f"{folder} holds {'a target model' if is_target else 'no draft head'}; expected a head, with the tensors "
            f"fc.weight and midlayer.* or layers.0.*{', and the target in the other place' if is_target else ''}"
        )
    try:
        numbered = spelling is eagle_formats.NUMBERED
        stated = read_entries(quant_config.without_quantization(entries), eagle3=spelling.eagle3, numbered=numbered)
        if spelling.eagle3:
            config: EagleConfig | Eagle3Config = eagle3_config(
                info, stated, spelling, _taps(stated.taps or default_taps)
            )
        else:
            config = eagle1_config(info, stated, spelling)
        config = dataclasses.replace(config, layers=window.with_window(config.layers, changes))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    ignored = [T2D, D2T] if spelling.eagle3 or config.draft_vocab_size is not None else []
    ignored += [] if spelling.eagle3 else [EMBEDDING]
    names.check(weights, spelling.rules, stored_shapes(config, weights), ignored=map(re.escape, ignored))
    draft_vocab_size, vocab_size = config.draft_vocab_size, config.layers.vocab_size
    ids = None if draft_vocab_size is None else read_vocabulary(weights, draft_vocab_size, vocab_size)
    return Checkpoint(
        weights=weights, spelling=spelling, config=config, vocabulary=ids, taps_stated=stated.taps is not None
    )


def _resized(checkpoint: Checkpoint, vocab_size: int) -> Checkpoint:
    """Returns the head for a target whose embedding was resized after the head's training.

    The rows that were added or removed are padding or a few tokens that the head never drafts.
    """
    config, ids = checkpoint.config, checkpoint.vocabulary
    trained_size = config.layers.vocab_size
    if ids is None or not 0 < abs(vocab_size - trained_size) <= MAX_RESIZE or ids.max() >= vocab_size:
        return checkpoint
    log.warning(
        "the head in %s was made for %d tokens and the target has %d: it drafts none of those that differ",
        checkpoint.weights.folder, trained_size, vocab_size,
    )  # fmt: skip
    layers = dataclasses.replace(config.layers, vocab_size=vocab_size)
    resized: Any = dataclasses.replace(config, layers=layers)
    return dataclasses.replace(checkpoint, config=resized)


def default_taps(layers: int) -> tuple[int, ...] | None:
    """Returns the taps of EAGLE-3 heads whose config names none: a low, a middle and a high layer of the target."""
    return (2, layers // 2, layers - 3) if layers >= 7 else None


def check_fit(checkpoint: Checkpoint, vocab_size: int, hidden_size: int, num_hidden_layers: int) -> None:
    """Raises ValueError for a head that was trained for a target of other sizes."""
    folder, config = checkpoint.weights.folder, checkpoint.config
    is_eagle3 = isinstance(config, Eagle3Config)
    features = config.target_hidden_size if isinstance(config, Eagle3Config) else config.layers.hidden_size
    if features != hidden_size:
        raise ValueError(
            f"the head in {folder} reads features of {features} numbers; "
            f"the target's have {hidden_size}, so it was made for another model"
        )
    table = checkpoint.weights.info.get(EMBEDDING)
    expected = (vocab_size, hidden_size)
    if table is not None and not is_eagle3 and table.shape != expected:
        raise ValueError(
            f"the head in {folder} has an embedding table of {list(table.shape)}; "
            f"the target's is {list(expected)}, so it was made for another model"
        )
    if config.layers.vocab_size != vocab_size:
        raise ValueError(
            f"the head in {folder} was made for a vocabulary of {config.layers.vocab_size} tokens; "
            f"the target has {vocab_size}"
        )
    if isinstance(config, Eagle3Config) and max(config.taps) > num_hidden_layers:
        raise ValueError(
            f"the head in {folder} reads layers {list(config.taps)} of its target; this one has "
            f"{num_hidden_layers}, so it was made for another model"
        )


@functools.cache
def shapes(config: EagleConfig | Eagle3Config) -> names.Params:
    """Returns the parameter tree with shapes as leaves; callers must not modify it."""
    network = HEAD_KINDS[config.kind].get("network")
    return jax.eval_shape(functools.partial(network.init, config), jax.random.key(0)).params


def stored_shapes(config: EagleConfig | Eagle3Config, weights: Weights) -> names.Params:
    """Returns the shapes of the parameters, without `lm_head` if the files have none and the target's serves."""
    has_output = OUTPUT in weights.info
    return {name: value for name, value in shapes(config).items() if name != "lm_head" or has_output}


def _taps(taps: tuple[int, ...] | None) -> tuple[int, ...]:
    if taps is None:
        raise ValueError(
            f"no {TAPS} says which target layers the head reads; expected it, or a target of at least 7 layers, "
            "whose layers 2, N//2 and N - 3 are the default"
        )
    return taps


def own_embedding(weights: Weights, config: Eagle3Config | DFlashConfig, target: LM) -> np.ndarray | None:
    """Returns the embedding in a head's files; None if it equals the target's, up to rounding to the narrower dtype.

    DeepSpec's DSpark heads keep their copy: their format requires an embedding.
    """
    table = weights.take(EMBEDDING)
    num_added = target.config.vocab_size - len(table)  # rows of a resized target (`_resized`)
    if num_added and not isinstance(config, DFlashConfig):
        fits = config.layers.hidden_size == config.target_hidden_size and not target.config.scales_edges
        new = np.asarray(target.table)[len(table) :] if fits else np.zeros((max(num_added, 0), table.shape[1]))
        table = np.concatenate([table[: target.config.vocab_size], new.astype(table.dtype)])
    if isinstance(config, DFlashConfig) and (config.markov is not None or config.confidence is not None):
        return table
    # Gemma multiplies its embeddings by a constant, and a head does not.
    if config.layers.hidden_size != config.target_hidden_size or target.config.scales_edges:
        return table
    target_table = np.asarray(target.table)
    # Block by block: rounding copies little, and a difference is found early.
    blocks = [slice(start, start + 4096) for start in range(0, len(table), 4096)]
    with np.errstate(over="ignore"):
        is_equal = all(np.array_equal(table[rows], target_table[rows].astype(table.dtype)) for rows in blocks)
        is_equal = is_equal or all(
            np.array_equal(table[rows].astype(target_table.dtype), target_table[rows]) for rows in blocks
        )
    return None if is_equal else table
