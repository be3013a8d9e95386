"""What transformers computes for a case: the whole text at once, and token by token through its own cache."""

import numpy as np
import torch
from parity_cases import PROMPTS, ROWS, STEPS, Case, texts, weights
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel


def model(case: Case) -> PreTrainedModel:
    """The case's model, in float32, with its weights."""
    config = AutoConfig.for_model(**case.entries)
    built = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    state = {name: torch.from_numpy(values) for name, values in weights(case, shapes).items()}
    missing, unexpected = built.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    return built


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
