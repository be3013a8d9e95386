"""The scheduler of an engine: a batch that any request fits, and a drafter for each number of running requests."""

from eagle_jax.loading.model import Model
from eagle_jax.methods.choice import Choice
from eagle_jax.scheduling.batch_shape import shape_for_any
from eagle_jax.scheduling.by_load import ByLoad, by_load
from eagle_jax.scheduling.measured import Measured
from eagle_jax.scheduling.modes import for_any_request
from eagle_jax.scheduling.recorder import Recorder
from eagle_jax.scheduling.scheduler import Scheduler
from eagle_jax.scheduling.sizes import chunk_tokens, slots_for_tree

PREFILL_TOKENS = 256  # prompt tokens that are read before running answers get their next steps


def scheduler_for_any(
    model: Model, choice: Choice, rows: int, max_tokens: int, steps: int, prefix_cache_bytes: int, *, record: bool
) -> tuple[ByLoad, Scheduler]:
    """Returns the drafters by load, and a scheduler with the deepest of them.

    Args:
        choice: what `choose` gives; the rest is as in `Engine`.
    """
    sizes = max_tokens - 1, max_tokens, chunk_tokens()
    drafters = by_load(choice, rows, steps, slots_for_tree(0, *sizes), always=record)
    shape = shape_for_any(model, rows, slots_for_tree(drafters.max_rows - 1, *sizes))
    return drafters, Scheduler(
        model,
        Recorder(drafters.deepest) if record else drafters.deepest,
        shape,
        steps=steps,
        prefill_chunks=max(1, PREFILL_TOKENS // chunk_tokens()),
        prefix_cache_bytes=prefix_cache_bytes,
        measured=None if record else Measured(drafters),
        modes=for_any_request(shape.mode),
    )
