"""The original PyTorch EAGLE and gpt-fast on the same GPU, where checkouts of them are at hand."""

import argparse
import os
import pathlib
import sys
from typing import Any

import against_eagle
import against_gpt_fast
from peer import compared
from turns import Timed

from gpu.record import Record
from gpu.scale import Scale


def eagle(scale: Scale, record: Record) -> None:
    options = asked(scale, "EAGLE", tree=",".join(map(str, scale.tree)))
    both = compared(options)
    timed = against_eagle.measured(both, options)
    for name, one in timed.items():
        record("answers", **row(name, one, timed[against_eagle.THEIRS]))
    record("texts", texts=len(both.asked), same=against_eagle.same(timed, options.new_tokens))


def gpt_fast(scale: Scale, record: Record) -> None:
    options = asked(scale, "GPT_FAST", int8=not scale.tiny, eager=scale.tiny)
    timed = against_gpt_fast.measured(compared(options), options)
    for name, one in timed.items():
        record("answers", **row(name, one, timed[against_gpt_fast.THEIRS]))


def asked(scale: Scale, name: str, **more: Any) -> argparse.Namespace:
    """What the scripts would be given: checkout, and where it needs another Python or packages of its own, those."""
    return argparse.Namespace(
        checkout=pathlib.Path(os.environ[f"{name}_CHECKOUT"]),
        python=os.environ.get(f"{name}_PYTHON", sys.executable),
        packages=os.environ.get(f"{name}_PACKAGES"),
        shape="small" if scale.tiny else scale.shape,
        dtype=scale.dtype,
        limit=min(scale.prompts, 2),
        new_tokens=min(scale.tokens, 128),
        repeats=2,
        folder=None,
        **more,
    )


def row(name: str, one: Timed, theirs: Timed) -> dict[str, object]:
    ratio = one.speed() / theirs.speed()
    return {"method": name, "tokens_per_s": one.speed(), "tokens_a_pass": one.length, "against_the_original": ratio}
