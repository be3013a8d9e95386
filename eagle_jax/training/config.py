"""The configuration of a training run, which is saved with the run."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import yaml

from eagle_jax.training.objective import Objective
from eagle_jax.training.published import PUBLISHED
from eagle_jax.training.settings import (
    BLOCKS,
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    FeaturesConfig,
    HeadConfig,
    OptimizerConfig,
    check_minimum,
)
from eagle_jax.training.typed import build, overlay, read_yaml

# Settings of the objective that only these methods use.
USED_BY = {
    "confidence_weight": ("dspark",),
    "selector_weight": ("dflash2",),
    "position_weights": BLOCKS,
    "anchors": ("peagle", *BLOCKS),
    "down_sample_ratio": ("peagle",),
    "down_sample_ratio_min": ("peagle",),
    "feature_weight": ("eagle1", "eagle3"),
}
UNUSED_VALUES = {"feature_weight": 0.0}  # values with other methods, if not the default


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run.

    Args:
        out: folder of the run, for checkpoints, metrics, this configuration, and the final head.
        target: folder or hub name of the frozen model; the package's toy model by default.
        dtype: dtype in which target and head compute, and of the written head; by default the target's stored dtype,
            where a CPU without bfloat16 computes in float32. Trained weights and optimizer state are always float32.
        steps: total number of updates.
        batch: rows per forward pass.
        accumulate: forward passes per update.
        remat: rematerialize activations of draft steps for the gradient: less memory, more time.
        seed: seed of the head's initial weights, the order of rows, and the noise.
        mesh: mesh over which head, target and rows are sharded, "data:2,model:4" or "auto"; one device by default.
        max_minutes: time limit; the run stops with a checkpoint, from which the next start continues.
        log_every: updates per line of metrics.
        tensorboard: write metrics for TensorBoard too (needs the extra `tensorboard`).
    """

    out: str
    steps: int
    data: DataConfig
    target: str | None = None
    dtype: Literal["float32", "bfloat16"] | None = None
    head: HeadConfig = HeadConfig()
    features: FeaturesConfig = FeaturesConfig()
    objective: Objective = Objective()
    optimizer: OptimizerConfig = OptimizerConfig()
    batch: int = 4
    accumulate: int = 1
    remat: bool = False
    seed: int = 0
    mesh: str | None = None
    max_minutes: float | None = None
    log_every: int = 10
    tensorboard: bool = False
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    # Settings that may change when a run is continued. The text of the data is compared instead of its settings;
    # another mesh changes only rounding. The evaluation depth is fixed, since heads are compared by it.
    FREE = ("max_minutes", "log_every", "tensorboard", "checkpoint", "evaluation", "out", "data", "mesh")
    FREE_INSIDE = ("features.folder",)
    FIXED_INSIDE = ("evaluation.depth",)

    def __post_init__(self):
        for name in ("steps", "batch", "accumulate", "log_every"):
            check_minimum(1, name, getattr(self, name))
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed}; expected a whole number from 0 to {2**63 - 1}")
        if self.optimizer.warmup >= self.steps:
            raise ValueError(
                f"optimizer.warmup={self.optimizer.warmup} is not below steps={self.steps}: "
                "the run would end before its peak rate; lower warmup"
            )
        size = self.head.block_size if self.head.start is None else None  # an earlier head keeps its size
        drafted = 0 if size is None else size - (self.head.method != "dspark")
        if self.objective.steps < drafted:
            raise ValueError(
                f"objective.steps={self.objective.steps} and head.block_size={size}; expected {drafted}, one for each "
                "position that the block drafts, since untrained positions would be drafted too"
            )
        for name, methods in USED_BY.items():
            value = getattr(self.objective, name)
            unread = UNUSED_VALUES.get(name, getattr(Objective, name))
            if self.head.method not in methods and value != unread:
                raise ValueError(
                    f"objective.{name}={value} with method {self.head.method}; expected {' or '.join(methods)}, since "
                    "no other method uses it"
                )
        if self.max_minutes is not None and self.max_minutes <= 0:
            raise ValueError(f"max_minutes={self.max_minutes}; expected more than 0")

    def as_yaml(self) -> str:
        """Returns all settings, including defaults, as YAML for `read_config`."""
        return yaml.safe_dump(_to_plain(dataclasses.asdict(self)), sort_keys=False)

    def by_name(self) -> dict[str, Any]:
        """Returns all settings by dotted name, such as `optimizer.rate`."""
        return _flatten(_to_plain(dataclasses.asdict(self)))

    def fixed(self) -> list[str]:
        """Returns the names of the settings that must not change when a run is continued."""
        return [
            name
            for name in self.by_name()
            if name in self.FIXED_INSIDE or name.split(".")[0] not in self.FREE and name not in self.FREE_INSIDE
        ]


def read_config(path: str | pathlib.Path, assignments: Sequence[str] = ()) -> TrainConfig:
    """Returns the configuration in a YAML file, with `key=value` assignments over it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: invalid YAML, an unknown or missing key, or an invalid value.
    """
    settings = read_yaml(pathlib.Path(path).read_text(encoding="utf-8"), str(path))
    if not isinstance(settings, dict):
        raise ValueError(f"{path} has no settings; expected lines such as steps: 1000")
    try:
        return _expand_paths(build(TrainConfig, _with_published(overlay(settings, assignments))))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _expand_paths(config: TrainConfig) -> TrainConfig:
    """Expands `~` in paths, except target and head, which may be hub names."""

    def expand(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(expand, value))
        return value if value is None else os.path.expanduser(value)

    def with_paths(part: Any, *names: str) -> Any:
        return dataclasses.replace(part, **{name: expand(getattr(part, name)) for name in names})

    return dataclasses.replace(
        with_paths(config, "out"),
        data=with_paths(config.data, "train", "held_out", "chat_template"),
        features=with_paths(config.features, "folder"),
        evaluation=with_paths(config.evaluation, "questions"),
    )


def _with_published(settings: dict[str, Any]) -> dict[str, Any]:
    """Adds the published defaults of the method to the settings."""
    head = settings.get("head")
    head = head if isinstance(head, dict) else {}
    method = head.get("method")
    defaults = PUBLISHED.get(str(method), {})
    sections = {key: settings.get(key, {}) for key in defaults}
    if method in BLOCKS and isinstance(block_size := head.get("block_size"), int) and not head.get("start"):
        # a block is trained at all positions that it drafts, which for DSpark include the first
        steps = block_size if method == "dspark" else block_size - 1
        defaults = defaults | {"objective": defaults["objective"] | {"steps": max(steps, 1)}}
    return settings | {key: defaults[key] | value for key, value in sections.items() if isinstance(value, dict)}


def _to_plain(value: Any) -> Any:
    """Converts tuples to lists, for YAML."""
    if isinstance(value, Mapping):
        return {key: _to_plain(inner) for key, inner in value.items()}
    return [_to_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
