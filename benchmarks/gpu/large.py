"""A 70B target in 4 bits with its head, on one GPU: does it fit, and what does EAGLE-3 gain there?"""

from gpu.bandwidth import copy_bandwidth, streamed
from gpu.record import Record
from gpu.scale import Scale
from gpu.speedup import rows


def run(scale: Scale, record: Record) -> None:
    copied = max(copy_bandwidth(scale).values())
    pair = scale.pair(scale.large, quantize="int4")
    read = streamed(pair.model.target.params)
    for row in rows(pair, scale, {}):
        if row["method"] == "plain":
            row["of_copy_bandwidth"] = read * row["tokens_per_s"] / copied
        record("answers", **row)
