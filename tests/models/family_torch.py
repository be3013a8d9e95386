"""What transformers computes for a family: the logits of a text, and what it says greedily, token by token."""

import numpy as np
import torch
from family_cases import NEW, PROMPT
from llama_torch import model
from parity_cases import Case, texts
from transformers import DynamicCache


@torch.no_grad()
def answers(case: Case) -> dict[str, np.ndarray]:
    """`whole` `[1, length, v]`, `prompt` of the first `PROMPT` tokens alone, and `said` `[NEW]` after those."""
    tokens, built = torch.from_numpy(texts(case)[:1]).long(), model(case)
    prompt = built(tokens[:, :PROMPT]).logits.numpy()
    whole = built(tokens).logits.numpy()
    built = model(case)  # a rotary embedding may remember the length
    cache, read, said = DynamicCache(config=built.config), tokens[:, :PROMPT], []
    for _ in range(NEW):
        logits = built(read, past_key_values=cache, use_cache=True).logits[0, -1]
        said.append(int(logits.argmax()))
        read = torch.tensor([said[-1:]])
    return {"whole": whole, "prompt": prompt, "said": np.array(said, np.int32)}
