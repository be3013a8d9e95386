"""A 70B target in 4 bits with its head, on one GPU: does it fit, and what does EAGLE-3 gain there?"""

import dataclasses

from gpu.bandwidth import copy_bandwidth, streamed
from gpu.record import Record
from gpu.scale import Scale
from gpu.speedup import rows

TOKENS = 64  # of the one answer: its weights are read nine times as slowly as those of the 8B shape in 4 bits


def run(scale: Scale, record: Record) -> None:
    copied = max(copy_bandwidth(scale).values())
    scale = dataclasses.replace(scale, prompts=1, tokens=min(TOKENS, scale.tokens))
    pair = scale.pair(scale.large, quantize="int4")
    read = streamed(pair.model.target.params)
    for row in rows(pair, scale, {}, repeats=1):
        if row["method"] == "plain":
            row["of_copy_bandwidth"] = read * row["tokens_per_s"] / copied
        record("answers", **row)
