"""Everything that decides what a training run computes, in one frozen value that is kept with the run."""

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
    Data,
    EvaluationConfig,
    FeaturesConfig,
    HeadConfig,
    OptimizerConfig,
    check_minimum,
)
from eagle_jax.training.typed import build, overlay, read_yaml

# Settings of the objective that only these methods read.
READ_BY = {
    "confidence_weight": ("dspark",),
    "selector_weight": ("dflash2",),
    "position_weights": BLOCKS,
    "anchors": ("peagle", *BLOCKS),
    "down_sample_ratio": ("peagle",),
    "down_sample_ratio_min": ("peagle",),
    "feature_weight": ("eagle1", "eagle3"),
}
UNREAD = {"feature_weight": 0.0}  # what they are with other methods, if not their default


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run.

    Args:
        out: folder of the run: checkpoints, metrics, this configuration, and the head at the end.
        target: folder or hub name of the frozen model; the toy that comes with the package by default.
        dtype: what target and head compute in, and what the head is written in; by default the type in which the target
            is stored, though a CPU without bfloat16 computes in float32 then. The head's own weights and the
            optimizer's state are always float32.
        steps: updates in all.
        batch: rows per pass.
        accumulate: passes per update.
        remat: keep of each trained draft step only what the next one reads, and compute the rest again for the
            gradient: less memory, more time.
        seed: seed of the head's first weights, the order of the rows, and the noise.
        mesh: devices to spread head, target and rows over, "data:2,model:4" or "auto"; one device by default.
        max_minutes: stop with a checkpoint after so long; the next start of the same run goes on from there.
        log_every: updates between two lines of metrics.
        tensorboard: write metrics for TensorBoard too (needs the extra `tensorboard`).
    """

    out: str
    steps: int
    data: Data
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

    # What may differ between two starts of one run: it does not change what is computed. Of the data the text itself is
    # compared, wherever its files are now; on another mesh sums are rounded otherwise, and that is all. The depth to
    # which heads are measured stays, or the best of them would not be known.
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
                "the run would end before its rate was reached"
            )
        size = self.head.block_size if self.head.start is None else None  # an earlier head's own size counts
        drafted = 0 if size is None else size - (self.head.method != "dspark")
        if self.objective.steps < drafted:
            raise ValueError(
                f"objective.steps={self.objective.steps} and head.block_size={size}; expected "
                f"{drafted}, as many as the block drafts, since a slot that is not learnt is drafted all the same"
            )
        for name, methods in READ_BY.items():
            value = getattr(self.objective, name)
            unread = UNREAD.get(name, getattr(Objective, name))
            if self.head.method not in methods and value != unread:
                raise ValueError(
                    f"objective.{name}={value} with method {self.head.method}; expected {' or '.join(methods)}, since "
                    "no other reads it"
                )
        if self.max_minutes is not None and self.max_minutes <= 0:
            raise ValueError(f"max_minutes={self.max_minutes}; expected more than 0")

    def as_yaml(self) -> str:
        """Returns every setting, defaults included, as `read_config` reads them."""
        return yaml.safe_dump(_plain(dataclasses.asdict(self)), sort_keys=False)

    def by_name(self) -> dict[str, Any]:
        """Returns every setting by its dotted name, such as `optimizer.rate`."""
        return _flat(_plain(dataclasses.asdict(self)))

    def fixed(self) -> list[str]:
        """Returns the names of the settings in which two starts of one run must agree."""
        return [
            name
            for name in self.by_name()
            if name in self.FIXED_INSIDE or name.split(".")[0] not in self.FREE and name not in self.FREE_INSIDE
        ]


def read_config(path: str | pathlib.Path, assignments: Sequence[str] = ()) -> TrainConfig:
    """Returns the configuration in a YAML file, with `key=value` assignments over it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no YAML, an unknown or missing key, or a value that cannot be.
    """
    settings = read_yaml(pathlib.Path(path).read_text(encoding="utf-8"), str(path))
    if not isinstance(settings, dict):
        raise ValueError(f"{path} holds no settings; expected lines such as steps: 1000")
    try:
        return _at_home(build(TrainConfig, _with_published(overlay(settings, assignments))))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _at_home(config: TrainConfig) -> TrainConfig:
    """Expands `~` in paths; target and head, which may be names on the hub, are resolved elsewhere."""

    def at_home(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(at_home, value))
        return value if value is None else os.path.expanduser(value)

    def with_paths(part: Any, *names: str) -> Any:
        return dataclasses.replace(part, **{name: at_home(getattr(part, name)) for name in names})

    return dataclasses.replace(
        with_paths(config, "out"),
        data=with_paths(config.data, "train", "held_out", "chat_template"),
        features=with_paths(config.features, "folder"),
        evaluation=with_paths(config.evaluation, "questions"),
    )


def _with_published(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings on top of the defaults of their method."""
    head = settings.get("head")
    head = head if isinstance(head, dict) else {}
    method = head.get("method")
    defaults = PUBLISHED.get(str(method), {})
    sections = {key: settings.get(key, {}) for key in defaults}
    if method in BLOCKS and isinstance(block_size := head.get("block_size"), int) and not head.get("start"):
        # a block learns all that it drafts; DSpark's first slot drafts, too
        steps = block_size if method == "dspark" else block_size - 1
        defaults = defaults | {"objective": defaults["objective"] | {"steps": max(steps, 1)}}
    return settings | {key: defaults[key] | value for key, value in sections.items() if isinstance(value, dict)}


def _plain(value: Any) -> Any:
    """Tuples as lists, which YAML has."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
