"""Published settings of each method, where they differ from the defaults in `settings`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from eagle_jax.training.objective import DFLASH, DFLASH2, DSPARK, EAGLE3, PARALLEL, PEAGLE

# SafeAILab/EAGLE, traineagle3; SpecForge's settings of DFlash and DFlash 2; deepseek-ai/DeepSpec; FasterDecoding/Medusa
# and zankner/Hydra, README, with the clipping and betas of the HuggingFace Trainer.
_TRAINER = {"betas": [0.9, 0.999], "decay": "cosine", "clip": "norm", "clip_at": 1.0}

_BLOCKS = {"rate": 6e-4, "warmup": 500, "weight_decay": 0.0, "clip": "norm", "clip_at": 1.0, "decay": "cosine"}

PUBLISHED: Mapping[str, Any] = {
    "eagle3": {
        "objective": dataclasses.asdict(EAGLE3),
        "optimizer": {"rate": 5e-5, "warmup": 12000, "weight_decay": 0.0, "clip": "norm"},
    },
    "peagle": {"objective": dataclasses.asdict(PEAGLE), "optimizer": _BLOCKS | {"rate": 1e-4}},
    "dflash": {"objective": dataclasses.asdict(DFLASH), "optimizer": _BLOCKS},
    "dspark": {"objective": dataclasses.asdict(DSPARK), "optimizer": _BLOCKS},
    "dflash2": {"objective": dataclasses.asdict(DFLASH2), "optimizer": _BLOCKS},
    "medusa": {
        "objective": dataclasses.asdict(PARALLEL),
        "optimizer": _TRAINER | {"rate": 1e-3, "weight_decay": 0.0},
    },
    "hydra": {
        "objective": dataclasses.asdict(PARALLEL) | {"steps": 4},
        "optimizer": _TRAINER | {"rate": 5e-4, "warmup": 100, "final": 0.33, "weight_decay": 0.1},
    },
}
