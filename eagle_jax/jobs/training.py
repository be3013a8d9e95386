"""Entry points of training: configuration and run."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_jax.converters import load_target, resolve, target_config, target_dtype
from eagle_jax.loading.dtypes import dtype_of
from eagle_jax.loading.folders import PAIR, is_toy
from eagle_jax.platform import keep_programs
from eagle_jax.sharding import sharding_of
from eagle_jax.text.tokenizers import tokenizer_in
from eagle_jax.training.events import Finished, Observe

if TYPE_CHECKING:
    from eagle_jax.training.config import TrainConfig


def read_config(path: str | Path, assignments: Sequence[str] = ()) -> "TrainConfig":
    """Returns the configuration in a YAML file, with `key=value` assignments over it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: invalid YAML, an unknown or missing key, or an invalid value.
    """
    from eagle_jax.training import config  # optax and orbax are slow to import, and only training needs them

    return config.read_config(path, assignments)


def first_turns(path: str | Path, limit: int | None = None) -> list[str]:
    """Returns the user's first turn of each conversation in a file, in any format that training reads.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file's format is unknown.
    """
    from eagle_jax.chat.conversations import Conversation, read

    conversations = (item.messages for item in read(path) if isinstance(item, Conversation))
    user_messages = (
        [message["content"] for message in messages if message["role"] == "user"] for messages in conversations
    )
    return list(
        itertools.islice((messages_of_user[0] for messages_of_user in user_messages if messages_of_user), limit)
    )


def train(config: "TrainConfig", observe: Observe = lambda event: None) -> Finished:
    """Trains the head that `config` describes; continues a run in the same folder.

    All processes of a multi-process run (`sharding.join`) call it, with a mesh over all their devices.

    Args:
        observe: called with each event (`eagle_jax.api.events`).

    Raises:
        FileNotFoundError: a file or folder does not exist.
        ValueError: the folder has another run, the data cannot be used, or the loss is not finite.
        OSError: the folder cannot be written, or the disk is full.
    """
    from eagle_jax.training.run import run

    keep_programs()
    folder = PAIR / "target" if config.target is None or is_toy(config.target) else resolve(config.target)
    sizes = target_config(folder)
    target = load_target(folder, dtype=dtype_of(config.dtype), sharding=sharding_of(config.mesh, sizes))
    stored = target_dtype(folder) if config.dtype is None else None  # even where a CPU computes in float32
    return run(config, target, tokenizer_in(folder), observe, sizes=sizes, head_dtype=stored)
