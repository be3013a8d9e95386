"""Phases of a step, from named scopes to a table."""

import pytest
from speller import RANDOM, TOKENIZER

from eagle_jax import api
from eagle_jax.inspection import profile as profiling
from eagle_jax.inspection.profile import by_phase, phase_of, scopes_of

LOOP = "jit(advance)/while/body/"


@pytest.mark.parametrize(
    "path, phase",
    [
        ("noise/threefry", "noise"),
        ("draft/draft_tree/top_k", "draft: first level"),
        ("draft/draft_tree/level_1/Head/layers_0/attention/dot", "draft: level 2"),
        ("draft/draft_tree/chain/ffi_call", "draft: all levels at once"),
        ("verify/Llama/layers_3/attention/qkv_proj/dot_general", "check: attention"),
        ("verify/Llama/layers_3/mlp/mlp/down_proj/dot_general", "check: mlp"),
        ("verify/lm_head/dot_general", "check: output matrix"),
        ("verify/Llama/norm/mul", "check: embedding, norms, masks"),
        ("accept/reduce_max", "draw and walk"),
        ("observe/draft_observe/Head/layers_0/mlp/dot", "draft: take in what was accepted"),
        ("commit/dynamic_update_slice", "commit"),
        ("add", None),
    ],
)
def test_the_phase_of_a_scope(path, phase):
    assert phase_of(LOOP + path) == phase


def test_seconds_of_operations_by_phase_in_order():
    program = """
  %fusion.1 = f32[4]{0} fusion(%a), kind=kLoop, metadata={op_name="jit(advance)/while/body/commit/add"}
  ROOT %dot.2 = f32[4]{0} dot(%a, %b), metadata={op_name="jit(advance)/while/body/draft/level_2/dot_general"}
  %dot.3 = f32[4]{0} dot(%a, %b), metadata={op_name="jit(advance)/while/body/draft/level_1/dot_general"}
  %while.4 = (s32[]) while(%t), condition=%c, body=%d, metadata={op_name="jit(advance)/while/body/verify/while"}
  %copy.5 = f32[4]{0} copy(%a)
"""
    scopes = scopes_of(program)
    assert set(scopes) == {"fusion.1", "dot.2", "dot.3"}
    timed = [("fusion.1", 1.0), ("dot.2", 2.0), ("dot.3", 3.0), ("dot.2", 2.0), ("while.4", 9.0), ("copy.5", 9.0)]
    spent = by_phase(timed, scopes)
    assert spent == {"draft: level 2": 3.0, "draft: level 3": 4.0, "commit": 1.0}
    assert list(spent) == ["draft: level 2", "draft: level 3", "commit"]


def test_a_cycle_of_a_real_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "STEPS", 3)
    prompt = TOKENIZER("spell")["input_ids"]
    found = api.profile(RANDOM, prompt, tree=(8, 2, 2), max_new_tokens=40, folder=tmp_path)
    assert found.prompt_tokens == len(prompt) and 1 <= found.tokens <= 4
    assert min(found.plain, found.step, found.prefill) > 0 and all(seconds >= 0 for seconds in found.phases.values())
    assert {"draft: level 2", "draft: level 3", "check: attention", "check: mlp", "commit", "rest"} <= {*found.phases}
    assert list(tmp_path.rglob("*.xplane.pb"))
    assert set(api.profile(RANDOM, prompt, drafter="none", max_new_tokens=40).phases) & {"check: mlp"}
