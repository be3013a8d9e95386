"""A training run, new or continued from its latest checkpoint.

An update depends only on the state (weights, moments, step, key) and the position in the data. A checkpoint has both,
so an interrupted and continued run computes the same as an uninterrupted one.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from eagle_jax.checks import check_same_settings, differences
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import save_head
from eagle_jax.durable import atomic_write, lock_file
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.lm import LM
from eagle_jax.sharding import DATA, Sharding, any_process, sharding_of, to_host, wait_for_others
from eagle_jax.training import data, heads, optimizer, prepare
from eagle_jax.training.checkpoint import Checkpoints
from eagle_jax.training.config import TrainConfig, read_config
from eagle_jax.training.events import Finished, Observe, Prepared, Reading
from eagle_jax.training.feature_files import digest, store
from eagle_jax.training.metrics import Metrics
from eagle_jax.training.order import RowOrder
from eagle_jax.training.trainer import Trainer
from eagle_jax.training.update import TrainState, begin, without_params
from eagle_jax.training.update_monitor import Diverged
from eagle_jax.training.vocabulary import most_frequent_tokens

CONFIG, SOURCES, CHECKPOINTS, HEAD, LOCK = "config.yaml", "sources.json", "checkpoints", "head", ".lock"
REMEDY = "name another out, or remove the folder"


def run(
    config: TrainConfig,
    target: LM,
    tokenizer: Any,
    observe: Observe = lambda event: None,
    *,
    sizes: LlamaConfig | None = None,
    head_dtype: Any = None,
) -> Finished:
    """Trains the head that `config` describes; continues a run in the same folder.

    The best head is written to the folder's `head`, in the published format. All processes of a multi-process run call
    it, with a mesh of all their devices and a shared folder; the first process writes.

    Args:
        sizes: the target's stored sizes, if sharding replicates its key/value heads.
        head_dtype: dtype of the written head; the target's by default.

    Raises:
        ValueError: the folder has a run with another configuration, target or text, or a running one, the data cannot
            be used, the mesh does not fit, or the loss is not finite (`Diverged`).
        OSError: the folder cannot be written, or the disk is full.
    """
    sharding = mesh_of(config, target)
    with exclusive(Path(config.out)):
        return _run(
            config, target, tokenizer, observe, sharding, sizes, target.dtype if head_dtype is None else head_dtype
        )


def _run(
    config: TrainConfig,
    target: LM,
    tokenizer: Any,
    observe: Observe,
    sharding: Sharding | None,
    sizes: LlamaConfig | None,
    dtype: Any,
) -> Finished:
    folder = Path(config.out)
    changed = check_config(folder, config)
    rows, held_out, report = load_rows(config, target, tokenizer, observe)
    head_key, noise_key = jax.random.split(jax.random.key(config.seed))
    ids, share = draft_vocabulary(config, rows, target)
    head = heads.first(config.head, target, ids, head_key, steps=config.objective.steps, sizes=sizes)
    rule = optimizer.make(config.optimizer, config.steps)
    state, frame = begin(head, rule, noise_key), without_params(head)
    if sharding is not None:
        target = sharding.put(target, sharding.target)
        state, frame = sharding.put((state, frame), sharding.head)
    sources = {f"target in {target.dtype.name}": digest(target, sizes or target.config), "held-out text": held_out.crc}
    order = RowOrder(rows, config.batch * config.accumulate, config.seed)

    stored = None
    if config.features.folder is not None:
        stored = store(config, target, rows, head.taps, observe, sharding=sharding, sizes=sizes)
    checkpoints = Checkpoints(folder / CHECKPOINTS, config.checkpoint)
    if checkpoints.latest is not None:
        saved = checkpoints.restore(checkpoints.latest, state)
        order.restore(saved.position, changed)
        check_sources(folder, sources)
        state = saved.state
    metrics = Metrics(folder if jax.process_index() == 0 else None, int(state.step), config.tensorboard)
    write_config(folder, config, sources)
    parameters = sum(p.size for p in jax.tree.leaves(state.params))
    observe(Prepared(report, len(rows), len(held_out), parameters, share, int(state.step)))
    trainer = Trainer(config, rule, target, frame, rows, held_out, checkpoints, metrics, observe, sharding, stored)
    try:
        state, interrupted = trainer.advance(state, order)
        checkpoints.finish()
        finished = export(folder, head, dtype, checkpoints, state, done=int(state.step))
        finished = dataclasses.replace(finished, interrupted=interrupted)
    except Diverged as error:
        checkpoints.finish()
        raise Diverged(f"{error}; {_describe_checkpoints(folder, head, dtype, checkpoints, state)}") from None
    finally:
        metrics.close()
        checkpoints.close()
    observe(finished)
    return finished


def mesh_of(config: TrainConfig, target: LM) -> Sharding | None:
    """Returns the configured sharding; None for one device.

    Raises:
        ValueError: the mesh does not divide the target or the batch.
    """
    sharding = sharding_of(config.mesh, target.config)
    if sharding is None and jax.process_count() > 1:
        raise ValueError(
            f"{jax.process_count()} processes and no mesh; give one over all of their devices, such as mesh: auto"
        )
    if sharding is not None and config.batch % sharding.sizes[DATA]:
        raise ValueError(f"batch={config.batch} with mesh data:{sharding.sizes[DATA]}; expected a multiple of it")
    return sharding


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Creates the folder and locks it against other runs for the block; of several processes, the first locks.

    Raises:
        ValueError: another run has locked the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        refused: ValueError | None = None
        if jax.process_index() == 0:
            try:
                lock_file(stack.enter_context((folder / LOCK).open("a")), folder)
            except ValueError as error:
                refused = error
        if any_process(refused is not None):  # all processes must raise, or the others would wait for the first
            raise refused or ValueError(f"another run is in {folder}, as the first process found")
        yield


def check_config(folder: Path, config: TrainConfig) -> str:
    """Raises ValueError if the folder has a run with checkpoints and another configuration.

    Returns:
        A description of changed data settings, which are allowed if the text is the same.
    """
    is_started = (folder / HEAD).exists() or any(path.name.isdecimal() for path in (folder / CHECKPOINTS).glob("*"))
    if not is_started or not (folder / CONFIG).exists():
        return ""
    before, now = read_config(folder / CONFIG).by_name(), config.by_name()
    check_same_settings(folder, before, now, REMEDY, config.fixed())
    return differences(before, now, [name for name in now if name.startswith("data.")])


def check_sources(folder: Path, sources: Mapping[str, int]) -> None:
    """Raises ValueError if the run in the folder has another target or held-out text, or their file is damaged."""
    path = folder / SOURCES
    if not path.exists():  # started by an earlier version
        return
    try:
        stored = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it, if target and text are those of the run") from None
    # a target in another dtype, which another machine may use, cannot be compared
    check_same_settings(folder, stored, sources, REMEDY, [name for name in sources if name in stored])


def write_config(folder: Path, config: TrainConfig, sources: Mapping[str, int]) -> None:
    """Writes the configuration once all processes have compared theirs."""
    if jax.process_count() > 1:
        wait_for_others("compared")
    if jax.process_index() == 0:
        for name, content in ((CONFIG, config.as_yaml()), (SOURCES, f"{json.dumps(sources)}\n")):
            with atomic_write(folder / name) as file:
                file.write(content.encode())


def load_rows(
    config: TrainConfig, target: LM, tokenizer: Any, observe: Observe
) -> tuple[data.Rows, data.Rows, prepare.DataReport]:
    """Returns training rows, held-out rows, and the report on the data."""
    data_settings = config.data
    if tokenizer is None:
        raise ValueError("the target's folder has no tokenizer; add its tokenizer files, since training reads text")
    if data_settings.chat_template is not None:
        tokenizer.chat_template = Path(data_settings.chat_template).read_text(encoding="utf-8-sig")
    options: dict[str, Any] = dict(
        vocab_size=target.config.vocab_size,
        length=data_settings.length,
        over_long=data_settings.over_long,
        progress=lambda examples: observe(Reading(examples)),
    )
    examples, report = prepare.prepare(data_settings.train, tokenizer, limit=data_settings.limit, **options)
    if data_settings.held_out:
        unseen, about = prepare.prepare(data_settings.held_out, tokenizer, **options)
        report = prepare.merge_reports(report, about)
    else:
        examples, unseen = prepare.split_held_out(examples, data_settings.held_out_share, config.seed)

    def rows(examples: list[data.Example]) -> data.Rows:
        if data_settings.pack:
            return data.pack(examples, data_settings.length, config.seed, bos=tokenizer.bos_token_id)
        return data.one_per_row(examples, data_settings.length)

    return rows(examples), rows(unseen), report


def draft_vocabulary(
    config: TrainConfig, rows: data.Rows, target: LM
) -> tuple[Int[np.ndarray, " d"] | None, float | None]:
    """Returns the draft vocabulary and its share of the assistant's tokens; None, None for the whole vocabulary."""
    size = config.head.draft_vocab_size
    if size is None:
        return None, None
    return most_frequent_tokens(rows, size, target.config.vocab_size)


def export(folder: Path, head: AnyHead, dtype: Any, checkpoints: Checkpoints, like: TrainState, done: int) -> Finished:
    """Writes the best head of the run in the published format."""
    best = checkpoints.best
    assert best is not None, "every checkpoint is measured"
    params = to_host(checkpoints.restore(best, like).state.params)
    if jax.process_index() == 0:
        params = jax.tree.map(lambda p: jnp.asarray(p, dtype), params)
        save_head(dataclasses.replace(head, params=params), folder / HEAD)
    if jax.process_count() > 1:
        wait_for_others("exported")
    return Finished(head=folder / HEAD, best=best, done=done)


def _describe_checkpoints(folder: Path, head: AnyHead, dtype: Any, checkpoints: Checkpoints, like: TrainState) -> str:
    last = checkpoints.latest
    if last is None:
        return "there was no checkpoint yet; remove the folder and start again with a lower optimizer.rate"
    exported = export(folder, head, dtype, checkpoints, like, done=last).head
    return (
        f"the last good checkpoint is that of update {last}, and the best head until then is in {exported}; "
        "start another run from it (head.start) with a lower optimizer.rate"
    )
