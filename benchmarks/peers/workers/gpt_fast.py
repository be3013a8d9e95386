"""gpt-fast, run from a checkout by a Python that has PyTorch. `originals.py` starts it.

Arguments: checkout, target's folder (its last part is what gpt-fast calls the model), its dimensions as JSON, dtype,
"compile" or "eager".
"""

import json
import pathlib
import sys
import time
import types
from typing import Any

from protocol import quiet_output, serve


def main() -> None:
    answers = quiet_output()
    checkout, folder, sizes, dtype, how = sys.argv[1:]
    sys.path.insert(0, checkout)
    sys.modules["tokenizer"] = types.SimpleNamespace(get_tokenizer=None)  # prompts are token ids
    import generate
    import model as models
    import torch

    target = pathlib.Path(folder)
    models.transformer_configs[target.name] = json.loads(sizes)
    path = converted(target)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = generate._load_model(path, device, getattr(torch, dtype), use_tp=False)
    if how == "compile":
        generate.decode_one_token = torch.compile(generate.decode_one_token, mode="reduce-overhead", fullgraph=True)

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        ids = torch.tensor(asked["prompt"], device=device, dtype=torch.int)
        start = time.perf_counter()
        made, _ = generate.generate(
            model, ids, asked["tokens"], 1, interactive=False, draft_model=None, temperature=0.0, top_k=None
        )
        tokens = made[0, len(ids) :].tolist()  # waits for the device
        return {"tokens": tokens, "seconds": time.perf_counter() - start, "accepted": 1.0}

    serve(answers, {"torch": torch.__version__, "device": device}, answer)


def converted(target: pathlib.Path) -> pathlib.Path:
    """The target in gpt-fast's own file, by its own script."""
    from scripts.convert_hf_checkpoint import convert_hf_checkpoint

    convert_hf_checkpoint(checkpoint_dir=target, model_name=target.name)
    return target / "model.pth"


if __name__ == "__main__":
    main()
