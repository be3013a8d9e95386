"""HuggingFace transformers as one more method: `generate`, its prompt lookup, and its assisted generation."""

import pathlib
import time
from typing import Any

from benchmarks.common.turns import Answer, Method
from eagle_jax.converters import config_to_hf
from eagle_jax.converters.llama import rules
from eagle_jax.converters.names import slots
from eagle_jax.models.lm import LM

COPIED = 10  # what transformers suggests for prompt lookup


def loaded(folder: str | pathlib.Path, dtype: str, *, until_end: bool = False) -> Any:
    """A model from a folder or a GGUF file, on the GPU if PyTorch sees one; nothing but the length ends its answers,
    unless they go `until_end`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    file = {}
    if str(folder).endswith(".gguf"):  # transformers wants the folder, and the file's name beside it
        folder, file = pathlib.Path(folder).parent, {"gguf_file": pathlib.Path(folder).name}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **file).eval()
    model.generation_config.eos_token_id = model.generation_config.eos_token_id if until_end else None
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def shared(target: LM) -> Any:
    """transformers' model of a target, of JAX's own arrays where they lie as in files: nothing is written to disk."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    entries = slots(rules(target.config), target.stored_params).values()
    arrays = {entry.keys[0]: torch.from_dlpack(entry.leaf) for entry in entries}
    config = LlamaConfig.from_dict(config_to_hf(target.config))
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    model.load_state_dict(arrays, assign=True)
    with next(iter(arrays.values())).device:
        model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its tables are in no file
    model.generation_config.eos_token_id = None
    return model


def methods(model: Any, new_tokens: int, name: str, draft: Any = None) -> dict[str, Method]:
    """All ways of one model to generate, greedily.

    Args:
        name: of its dtype, which the methods are called by.
        draft: a small model for assisted generation, if there is one.
    """
    import torch

    def method(**how: Any) -> Method:
        fixed = dict(do_sample=False, max_new_tokens=new_tokens, pad_token_id=0)

        def run(prompt: list[int]) -> Answer:
            ids = torch.tensor([prompt], device=model.device)
            start = time.perf_counter()
            with torch.inference_mode():
                out = model.generate(ids, attention_mask=torch.ones_like(ids), **fixed, **how)
            tokens = out[0, len(prompt) :].tolist()  # waits for the device
            steps = float("nan") if how else len(tokens)
            return Answer(tokens, len(tokens), steps, time.perf_counter() - start)

        return run

    ways = {"generate": method(), "prompt lookup": method(prompt_lookup_num_tokens=COPIED)}
    ways |= {} if draft is None else {"assisted": method(assistant_model=draft)}
    return {f"HF {way}, {name}": run for way, run in ways.items()}
