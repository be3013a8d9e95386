"""Greedy answers of quantized folders are those of transformers on the weights that their format's rule gives."""

import numpy as np
import published
import pytest
from test_mutilated_quantized import FORMATS
from test_quantized_folders import key_of

from eagle_jax import api, ops

pytestmark = pytest.mark.parity
PROMPTS = [np.random.default_rng(seed).integers(0, published.VOCAB, 1 + seed).tolist() for seed in range(12)]
NEW = 4


@pytest.mark.parametrize("name", FORMATS)
def test_greedy_ids_are_those_of_transformers(name, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv(ops.VARIABLE, "xla")  # the CPU backend rounds rows
    publish, stated = FORMATS[name]
    folder = published.write(tmp_path / "quantized", publish, stated, key=key_of(name))
    floats = {key: value for key, value in published.tensors_of(folder).items() if value.dtype == np.float16}
    floats = {key: value.astype(np.float32) for key, value in floats.items() if key.endswith("weight")}
    floats |= {f"{module}.weight": value for module, value in folder.dense.items()}
    (tmp_path / "floats").mkdir()
    published.save(tmp_path / "floats", floats)
    published.state(tmp_path / "floats", None)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "floats", dtype=torch.float32).eval()
    ours, answers = api.load(folder.path, dtype="float32"), []
    for prompt in PROMPTS:
        text = torch.tensor([prompt])
        for _ in range(NEW):
            text = torch.cat([text, theirs(text).logits[:, -1:].argmax(-1)], dim=1)
        result = api.generate(ours, prompt, max_new_tokens=NEW, ignore_eos=True)
        answers.append(result.token_ids)
        assert result.token_ids == text[0, len(prompt) :].tolist()
    assert len({tuple(answer) for answer in answers}) > 3, "answers of one kind would show little"
