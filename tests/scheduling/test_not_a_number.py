"""Logits that are NaN end an answer with a reason of its own, and weights that would make them so are not loaded."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from speller import ASSISTANT, DYNAMIC, SCRIPT, SPELLER, asked

from eagle_jax import api
from eagle_jax.converters import save_target
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY, synthetic_pair

SPOILED = SCRIPT[5]  # its embedding: the answer is right until it has been read


def spoiled(token: int) -> api.Model:
    table = SPELLER.target.params["embed_tokens"]["embedding"].at[token].set(jnp.nan)
    target = LM(params=SPELLER.target.params | {"embed_tokens": {"embedding": table}}, config=SPELLER.target.config)
    return dataclasses.replace(SPELLER, target=target)


def test_an_answer_ends_where_nothing_can_be_drawn():
    """A spoiled node spoils those beside it in its tree, so with drafting an answer may end a few tokens earlier."""
    for token, most in ((SPOILED, SCRIPT[:6]), (ASSISTANT, [0])):
        for temperature in (0.0, 1.0):
            for drafting in ({"drafter": "none"}, DYNAMIC):
                result = api.generate(spoiled(token), asked("?"), temperature=temperature, **drafting)
                assert result.finish_reason == "error", drafting
                if token == SPOILED and temperature == 0.0:
                    assert result.token_ids and result.token_ids == most[: len(result.token_ids)]
                    assert "tree" in drafting or result.token_ids == most
                assert len(result.token_ids) <= len(most) + 1
    scored = api.generate(spoiled(SPOILED), asked("?"), logprobs=True, top_logprobs=2)
    assert np.isfinite(scored.logprobs).all()


def test_others_in_the_batch_go_on():
    model = spoiled(SPOILED)
    other = [SCRIPT[10]]
    alone = api.generate(SPELLER, other, max_new_tokens=12, **DYNAMIC)
    bad, good = api.generate(model, [asked("?"), other], max_new_tokens=12, **DYNAMIC)
    assert (bad.finish_reason, good.token_ids) == ("error", alone.token_ids)


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    target, _ = synthetic_pair(TINY)
    for name, value in (("embed_tokens", np.nan), ("lm_head", np.inf)):
        (leaf,) = target.params[name].keys()
        params = target.params | {name: {leaf: target.params[name][leaf].at[7, 3].set(value)}}
        folder = tmp_path / name
        save_target(LM(params=params, config=TINY), folder)
        with pytest.raises(
            ValueError, match=rf"{name}.weight in .* holds 1 numbers that are NaN or infinite.*\[7, 3\]"
        ):
            api.load(folder)
    save_target(target, tmp_path / "large")
    entries = json.loads((tmp_path / "large" / "config.json").read_text())
    assert entries["torch_dtype"] == "float32"
    large = target.params | {"lm_head": {"weight": target.params["lm_head"]["weight"].at[7, 3].set(1e6)}}
    save_target(LM(params=large, config=TINY), tmp_path / "beyond")
    with pytest.raises(ValueError, match="float16 has no room for them: give dtype='bfloat16' or 'float32'"):
        api.load(tmp_path / "beyond", dtype="float16")
