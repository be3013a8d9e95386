"""Requests together: with the tree that the batch size asks for, is a batch never slower than plain decoding?"""

from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.inspection.start import Start
from eagle_jax.tuning.methods import drafter_for
from gpu.cycles import kernels_a_cycle, published
from gpu.record import Record
from gpu.scale import Scale


def run(scale: Scale, record: Record) -> None:
    pair = scale.pair()
    for rows in scale.batches:
        auto = drafter_for(pair.model, "eagle", "auto", rows)
        start = Start(pair.model, published(pair.model, scale), scale.asks(pair.model, pair.chart, rows))
        drafters: dict[str, Drafter] = {"plain": Plain(), "auto": auto}
        kernels_a_cycle(start, drafters)  # compiles both at a time
        speeds, lengths = dict.fromkeys(drafters, 0.0), dict.fromkeys(drafters, 1.0)
        for _ in range(scale.repeats // 2 + 1):  # the first is a warm-up, and never the fastest
            for name, drafter in drafters.items():
                ran = start.run(drafter)
                speeds[name] = max(speeds[name], ran.tokens / ran.seconds)
                lengths[name] = ran.tokens / ran.cycles / rows
        record(
            "batches",
            rows=rows,
            tree=f"{auto.shape.nodes} nodes, {auto.shape.depth} deep",
            plain_tokens_per_s=speeds["plain"],
            tokens_per_s=speeds["auto"],
            tokens_a_pass=lengths["auto"],
            speedup=speeds["auto"] / speeds["plain"],
        )
