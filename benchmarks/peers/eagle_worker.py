"""The original PyTorch EAGLE, run from a checkout by a Python that has what it needs; `eagle_original.py` starts it.

Arguments: checkout, target's folder, head's folder, dtype, "eagle3" or "eagle1", nodes, depth, top-k. It prints a line
of JSON with its versions, then one for every line of JSON that it reads.
"""

import json
import os
import sys
import time
import types
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes where errors go
    checkout, target, head, dtype, kind, *tree = sys.argv[1:]
    sys.path.insert(0, checkout)
    import torch
    import transformers
    from eagle.model import ea_model

    # Prompts are token ids, and nothing but the length ends an answer.
    no_tokenizer = types.SimpleNamespace(eos_token_id=None)
    ea_model.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda *args, **how: no_tokenizer)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    nodes, depth, top_k = map(int, tree)
    base = ea_model.KVLlamaForCausalLM.from_pretrained
    ea_model.KVLlamaForCausalLM.from_pretrained = lambda *args, **how: base(*args, **how).to(device)
    model = ea_model.EaModel.from_pretrained(
        use_eagle3=kind == "eagle3",
        base_model_path=target,
        ea_model_path=head,
        total_token=nodes,
        depth=depth,
        top_k=top_k,
        torch_dtype=getattr(torch, dtype),
    )
    model.eval()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        ids = torch.tensor([request["prompt"]], device=device)
        run = {"plain": model.naivegenerate, "eagle": model.eagenerate}[request["method"]]
        start = time.perf_counter()
        how = dict(temperature=0.0, max_new_tokens=request["tokens"], max_length=request["slots"], log=True)
        out, count, last = run(ids, **how)
        tokens = out[0, len(request["prompt"]) :].tolist()  # waits for the device
        return {"tokens": tokens, "seconds": time.perf_counter() - start, "committed": int(count), "steps": last + 1}

    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "device": device}
    print(json.dumps(versions), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
