"""Draft heads in and out: EAGLE-1, 2, 3 and P-EAGLE, in the format of their authors, of SGLang, and of speculators."""

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
from eagle_jax.converters.heads.entries import HEAD_TYPE, TAPS, check_method, read_entries
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
TAPS_BY_DEFAULT = "2, N//2 and N - 3 of a target of N layers"
MAX_RESIZED = 1024  # tokens by which a target's vocabulary may differ from the one that a head was made for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A head's folder, checked against its config by name, shape and dtype; no weight has been read.

    Attributes:
        weights: its files.
        spelling: what its tensors are called.
        config: what they make. An EAGLE-3 head that holds an embedding has it as its own.
        vocabulary: target ids of the drafted tokens, ascending; None drafts all.
        has_taps: whether its config names the tapped layers.
    """

    weights: Weights
    spelling: Spelling
    config: EagleConfig | Eagle3Config
    vocabulary: np.ndarray | None
    has_taps: bool

    @property
    def dtype(self) -> str:
        """The dtype of the stored weights, going by `fc`; for quantized ones the dtype that they replace."""
        return names.stored_dtype(self.weights, f"{self.spelling.fc}.weight").name


def kind_of(info: Mapping[str, TensorInfo]) -> str | None:
    spelling = eagle_formats.spelling_of(info)
    if spelling is None:
        return None
    return "eagle1" if not spelling.eagle3 else "peagle" if eagle_formats.MASK in info else "eagle3"


def format_of(entries: Mapping[str, Any]) -> str:
    return "speculators" if HEAD_TYPE in entries else "safeailab or sglang"


def check(weights: Weights, target: LlamaConfig | None) -> CheckedHead:
    checkpoint = read_head(weights, (0, 1, 2) if target is None else default_taps(target.num_hidden_layers), {})
    unstated = checkpoint.spelling.eagle3 and not checkpoint.has_taps and target is None
    slots = names.slots(checkpoint.spelling.rules, shapes(checkpoint.config))
    return CheckedHead(checkpoint.config, slots, MODEL_FILE, {"taps": TAPS_BY_DEFAULT} if unstated else {})


def load(
    weights: Weights, target: LM, dtype: Any, changes: Mapping[str, Any], scheme: Scheme | None = None
) -> DraftHead:
    checkpoint = read_head(weights, default_taps(target.config.num_hidden_layers), changes)
    sizes = target.config
    checkpoint = _resized(checkpoint, sizes.vocab_size)
    check_fit(checkpoint, sizes.vocab_size, sizes.hidden_size, sizes.num_hidden_layers)
    config, embedding = checkpoint.config, None
    if isinstance(config, Eagle3Config) and config.own_embedding:
        embedding = own_embedding(weights, config, target)
        config = dataclasses.replace(config, own_embedding=embedding is not None)
    float_dtype = names.stored_dtype(weights, f"{checkpoint.spelling.fc}.weight") if dtype is None else dtype
    param_shapes = {name: value for name, value in stored_shapes(config, weights).items() if name != "embed_tokens"}
    params = reading.read_params(weights, checkpoint.spelling.rules, param_shapes, float_dtype, scheme=scheme)
    if embedding is not None:
        params["embed_tokens"] = {"embedding": jnp.asarray(embedding).astype(float_dtype)}
    ids = None if checkpoint.vocabulary is None else jnp.asarray(checkpoint.vocabulary, jnp.int32)
    if "lm_head" in shapes(config) and "lm_head" not in param_shapes:
        params["lm_head"] = {"weight": dense(target.output_matrix).astype(float_dtype)}
    return HEAD_KINDS[config.kind].get("network")(params=params, config=config, vocabulary=ids)


def save(head: DraftHead, folder: pathlib.Path, format: str | None, target: LM | None, target_name: str | None) -> None:
    format = eagle_formats.default_format(head.config) if format is None else format
    form = eagle_formats.format_named(format)
    verifier = verifier_for(target, target_name)
    eagle1 = isinstance(head.config, EagleConfig)
    rules = (form.eagle1 if eagle1 else form.eagle3).rules
    entries = entries_for(format, head.config, head.dtype.name, verifier)
    entries |= quant_config.params_entry(rules, head.stored_params)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        yield from names.tensors(rules, head.stored_params)
        if head.vocabulary is not None:
            yield from mapping_tensors(np.asarray(head.vocabulary), head.config.layers.vocab_size)
        if eagle1 and target is not None and format == "safeailab":
            yield EMBEDDING, np.asarray(target.table.astype(head.dtype))

    write_folder(folder, entries, tensors())


def verifier_for(target: LM | None, name: str | None) -> Verifier:
    """Returns a target as configs of speculators name it."""
    if target is None:
        return Verifier(name=name)
    described = config_to_hf(target.config)
    context = described["max_position_embeddings"]
    return Verifier(name=name, architectures=tuple(described["architectures"]), max_position_embeddings=context)


def read_head(weights: Weights, default_taps: tuple[int, ...] | None, changes: Mapping[str, Any]) -> Checkpoint:
    """Holds the files of a head against its `config.json`.

    Args:
        default_taps: what an EAGLE-3 head reads whose config names no layers; None if there is no default.
        changes: entries that take the place of those in `config.json`.

    Raises:
        ValueError: no head, or one that is not understood.
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
        head_entries = read_entries(
            quant_config.without_quantization(entries), eagle3=spelling.eagle3, numbered=numbered
        )
        if spelling.eagle3:
            config: EagleConfig | Eagle3Config = eagle3_config(
                info, head_entries, spelling, _taps(head_entries.taps or default_taps)
            )
        else:
            config = eagle1_config(info, head_entries, spelling)
        config = dataclasses.replace(config, layers=window.with_window(config.layers, changes))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    aside = [T2D, D2T] if spelling.eagle3 or config.draft_vocab_size is not None else []
    aside += [] if spelling.eagle3 else [EMBEDDING]
    names.check(weights, spelling.rules, stored_shapes(config, weights), ignored=map(re.escape, aside))
    drafted, vocab_size = config.draft_vocab_size, config.layers.vocab_size
    ids = None if drafted is None else read_vocabulary(weights, drafted, vocab_size)
    return Checkpoint(
        weights=weights, spelling=spelling, config=config, vocabulary=ids, has_taps=head_entries.taps is not None
    )


def _resized(checkpoint: Checkpoint, vocab_size: int) -> Checkpoint:
    """Returns the head for a target whose embedding was resized after the head's training.

    Rows that are padding, or belong to a few added tokens, lie beyond what the head drafts.
    """
    config, ids = checkpoint.config, checkpoint.vocabulary
    before = config.layers.vocab_size
    if ids is None or not 0 < abs(vocab_size - before) <= MAX_RESIZED or ids.max() >= vocab_size:
        return checkpoint
    log.warning(
        "the head in %s was made for %d tokens and the target has %d: it drafts none of those that differ",
        checkpoint.weights.folder, before, vocab_size,
    )  # fmt: skip
    layers = dataclasses.replace(config.layers, vocab_size=vocab_size)
    resized: Any = dataclasses.replace(config, layers=layers)
    return dataclasses.replace(checkpoint, config=resized)


def default_taps(layers: int) -> tuple[int, ...] | None:
    """Returns the taps of EAGLE-3 heads whose config names none: a low, a middle and a high layer of the target."""
    return (2, layers // 2, layers - 3) if layers >= 7 else None


def check_fit(checkpoint: Checkpoint, vocab_size: int, hidden_size: int, num_hidden_layers: int) -> None:
    """Refuses a head that was made for another target than the one of these sizes."""
    folder, config = checkpoint.weights.folder, checkpoint.config
    eagle3 = isinstance(config, Eagle3Config)
    features = config.target_hidden_size if isinstance(config, Eagle3Config) else config.layers.hidden_size
    if features != hidden_size:
        raise ValueError(
            f"the head in {folder} reads features of {features} numbers; "
            f"the target's have {hidden_size}, so it was made for another model"
        )
    table = checkpoint.weights.info.get(EMBEDDING)
    expected = (vocab_size, hidden_size)
    if table is not None and not eagle3 and table.shape != expected:
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
    """Returns the parameter tree, of shapes; not to be changed."""
    network = HEAD_KINDS[config.kind].get("network")
    return jax.eval_shape(functools.partial(network.init, config), jax.random.key(0)).params


def stored_shapes(config: EagleConfig | Eagle3Config, weights: Weights) -> names.Params:
    """Returns the parameter tree, of shapes, without an output matrix if the files have none (the target's is used)."""
    return {name: value for name, value in shapes(config).items() if name != "lm_head" or OUTPUT in weights.info}


def _taps(taps: tuple[int, ...] | None) -> tuple[int, ...]:
    if taps is None:
        raise ValueError(
            f"no {TAPS} says which target layers the head reads; expected it, or a target of at least 7 layers, "
            "whose layers 2, N//2 and N - 3 are the default"
        )
    return taps


def own_embedding(weights: Weights, config: Eagle3Config | DFlashConfig, target: LM) -> np.ndarray | None:
    """Returns the embedding that came with a head; None if its values are the target's, rounded either way.

    DeepSpec's DSpark heads keep theirs, a copy: the layout has it, and is written by it.
    """
    table = weights.take(EMBEDDING)
    added = target.config.vocab_size - len(table)  # of a target that was resized (`_resized`)
    if added and not isinstance(config, DFlashConfig):
        fits = config.layers.hidden_size == config.target_hidden_size and not target.config.scales_edges
        new = np.asarray(target.table)[len(table) :] if fits else np.zeros((max(added, 0), table.shape[1]))
        table = np.concatenate([table[: target.config.vocab_size], new.astype(table.dtype)])
    if isinstance(config, DFlashConfig) and (config.markov is not None or config.confidence is not None):
        return table
    # A Gemma multiplies its embeddings by a constant, and a head does not.
    if config.layers.hidden_size != config.target_hidden_size or target.config.scales_edges:
        return table
    target_table = np.asarray(target.table)
    # Some rows at a time, so that rounding copies little, and a difference is found early.
    blocks = [slice(start, start + 4096) for start in range(0, len(table), 4096)]
    with np.errstate(over="ignore"):
        down = all(np.array_equal(table[rows], target_table[rows].astype(table.dtype)) for rows in blocks)
        same = down or all(
            np.array_equal(table[rows].astype(target_table.dtype), target_table[rows]) for rows in blocks
        )
    return None if same else table
