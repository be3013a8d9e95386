"""500 prompts of mixed length through 8 rows: everybody gets what it would get alone, and hardly a row stands idle."""

import numpy as np
import pytest

from eagle_jax.api import Model, generate
from eagle_jax.methods.choice import drafter_for
from eagle_jax.requests.options import options_for
from eagle_jax.requests.request import requests_for
from eagle_jax.scheduling import programs
from eagle_jax.scheduling.offline import Utilisation, run
from eagle_jax.testing import TINY, synthetic_pair

ROWS, PROMPTS = 8, 500
RNG = np.random.default_rng(5)


@pytest.mark.proof
def test_rows_stay_busy_and_answers_are_those_alone():
    """Caches of two sizes, answers that end by themselves or at limits of their own, greedy and sampled ones mixed."""
    model = Model(*synthetic_pair(TINY, strength=0.6, error=0.15), tokenizer=None, stop_ids=(7,), context=320)
    sizes = np.where(RNG.random(PROMPTS) < 0.6, RNG.integers(1, 60, PROMPTS), RNG.integers(130, 190, PROMPTS))
    prompts = [RNG.integers(0, TINY.vocab_size, size).tolist() for size in sizes]
    limits, seeds = RNG.integers(4, 59, PROMPTS).tolist(), list(range(PROMPTS))
    temperatures = RNG.choice([0.0, 0.7, 1.0], PROMPTS).tolist()
    drafter = drafter_for(model, "eagle", (8, 2, 2))
    values = dict(max_new_tokens=limits, temperature=temperatures)
    options = options_for(PROMPTS, top_k=0, top_p=1.0, min_p=0.0, **values)

    def through(asked: slice) -> tuple[dict[int, list[int]], Utilisation]:
        utilisation = Utilisation()
        requests = requests_for(model, prompts[asked], options[asked], seeds[asked])
        events = run(model, requests, ROWS, lambda _: drafter, utilisation=utilisation)
        return {event.request.index: event.result.token_ids for event in events if event.result}, utilisation

    through(slice(0, 6 * ROWS))  # warm: caches of 128 and of 256 slots, full batches, newcomers
    compiled = programs.compiled()
    together, utilisation = through(slice(0, PROMPTS))
    assert programs.compiled() == compiled, "something was compiled anew"
    assert utilisation.fraction > 0.9, f"rows were busy {utilisation.fraction:.1%} of the time"
    assert len({len(answer) for answer in together.values()}) > 40 and len(together) == PROMPTS
    for i, prompt in enumerate(prompts):
        alone = generate(
            model, prompt, max_new_tokens=limits[i], temperature=temperatures[i], seed=seeds[i], drafter=drafter
        )
        assert together[i] == alone.token_ids, i
