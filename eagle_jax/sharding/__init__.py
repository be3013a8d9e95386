"""One program over many devices: a mesh, rules that shard arrays over it, and weights that go straight to its devices.

A mesh has two axes. Requests are sharded over `data`; attention heads, the MLP's width and the vocabulary over `model`:

    data:2,model:2          model 0                     model 1
        data 0      heads 0, 1 of rows 0, 1     heads 2, 3 of rows 0, 1
        data 1      heads 0, 1 of rows 2, 3     heads 2, 3 of rows 2, 3

Only arrays are sharded: the program is the same as on a single device, and XLA inserts the communication (Auto axes).
Within a decoder layer that is one sum over `model` after attention and one after the MLP; caches are never moved.

A target with fewer key/value heads than `model` has devices holds copies of each head, every copy with some of the
queries: a whole cache on every device would cost more memory than the mesh saves.
"""

from eagle_jax.sharding.hosts import any_process, from_first_process, join, wait_for_others
from eagle_jax.sharding.mesh import (
    LOCAL,
    Sharding,
    check,
    model_sizes,
    parse,
    repeats,
    sharding_of,
    with_repeated_kv_heads,
)
from eagle_jax.sharding.placing import Place, place_all, placement, placing, to_host
from eagle_jax.sharding.rules import (
    AXES,
    DATA,
    HEAD,
    MODEL,
    STATE,
    TARGET,
    Rules,
    bytes_per_device,
    fitting,
    per_device,
    spec_of,
)
from eagle_jax.sharding.tracing import argmax, by_head, by_row, constrain, sharded, sum_over_model, top_k, traced_over

__all__ = [
    "AXES",
    "DATA",
    "HEAD",
    "LOCAL",
    "MODEL",
    "Place",
    "Rules",
    "STATE",
    "Sharding",
    "TARGET",
    "sum_over_model",
    "any_process",
    "argmax",
    "by_head",
    "by_row",
    "bytes_per_device",
    "check",
    "constrain",
    "fitting",
    "from_first_process",
    "join",
    "model_sizes",
    "parse",
    "per_device",
    "place_all",
    "placement",
    "placing",
    "repeats",
    "sharding_of",
    "spec_of",
    "sharded",
    "to_host",
    "top_k",
    "traced_over",
    "wait_for_others",
    "with_repeated_kv_heads",
]
