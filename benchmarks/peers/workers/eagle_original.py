"""The original PyTorch EAGLE, run from a checkout by a Python that has what it needs. `originals.py` starts it.

Arguments: checkout, target's folder, head's folder, dtype, "eagle3" or "eagle1", nodes, depth, top-k.
"""

import sys
import time
import types
from typing import Any

from protocol import quiet_output, serve


def main() -> None:
    answers = quiet_output()
    checkout, target, head, dtype, kind, *tree = sys.argv[1:]
    sys.path.insert(0, checkout)
    import torch
    import transformers
    from eagle.model import ea_model

    # Prompts are token ids, and nothing but the length ends an answer.
    nothing = types.SimpleNamespace(eos_token_id=None)
    ea_model.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda *args, **how: nothing)
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

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        ids = torch.tensor([asked["prompt"]], device=device)
        new = asked["tokens"]
        run = {"plain": model.naivegenerate, "eagle": model.eagenerate}[asked["method"]]
        start = time.perf_counter()
        made, count, last = run(ids, temperature=0.0, max_new_tokens=new, max_length=asked["slots"], log=True)
        tokens = made[0, len(asked["prompt"]) :].tolist()  # waits for the device
        return {"tokens": tokens, "seconds": time.perf_counter() - start, "accepted": int(count) / (last + 1)}

    serve(answers, {"torch": torch.__version__, "transformers": transformers.__version__, "device": device}, answer)


if __name__ == "__main__":
    main()
