"""What transformers computes for a case: the whole text at once, and token by token through its own cache."""

import copy
import pathlib
import tempfile

import numpy as np
import torch
from parity_cases import PROMPTS, ROWS, STEPS, Case, texts, weights
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel


def model(case: Case) -> PreTrainedModel:
    """The case's model, in float32, with its weights: under the names of published files, which are not always those
    of the model in memory."""
    config = AutoConfig.for_model(**copy.deepcopy(case.entries))  # transformers writes into nested entries
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        file = pathlib.Path(folder) / "model.safetensors"
        shapes = {name: value.shape for name, value in load_file(file).items()}
        save_file(weights(case, shapes), file, metadata={"format": "pt"})
        built, loaded = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
    wrong = {kind: names for kind, names in loaded.items() if names}
    assert not wrong, wrong
    return built.eval()


@torch.no_grad()
def answers(case: Case) -> dict[str, np.ndarray]:
    """Logits: `whole` `[rows, length, v]`, and `stepwise` `[rows, steps, v]` for the tokens after each row's prompt."""
    tokens = torch.from_numpy(texts(case)).long()
    whole = model(case)(tokens).logits.numpy()
    stepwise = [_stepwise(model(case), tokens[row : row + 1], PROMPTS[row]) for row in range(ROWS)]
    return {"whole": whole, "stepwise": np.stack(stepwise)}


def _stepwise(built: PreTrainedModel, tokens: torch.Tensor, prompt: int) -> np.ndarray:
    cache = DynamicCache(config=built.config)
    built(tokens[:, :prompt], past_key_values=cache, use_cache=True)
    logits = [
        built(tokens[:, at : at + 1], past_key_values=cache, use_cache=True).logits[0, -1].numpy()
        for at in range(prompt, prompt + STEPS)
    ]
    return np.stack(logits)
