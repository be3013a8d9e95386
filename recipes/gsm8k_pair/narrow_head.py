"""Makes a head's MLP narrower: the neurons that say least are left out. It needs training afterwards.

    python recipes/gsm8k_pair/narrow_head.py --head HEAD --width 384 --out runs/gsm8k_pair/narrow

A neuron's share is estimated as the size of its output over inputs drawn at random, as the norm before it makes them:
independent, of variance one, times the norm's scale.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np
from safetensors.flax import load_file, save_file

MLP, NORM = "layers.0.mlp.{}_proj.weight", "layers.0.post_attention_layernorm.weight"
DRAWN = 4096


def strongest(tensors: dict[str, np.ndarray], width: int) -> np.ndarray:
    """The `width` neurons with the largest mean output, in their old order."""
    gate, up, down = (tensors[MLP.format(name)] for name in ("gate", "up", "down"))
    inputs = np.random.default_rng(0).normal(size=(DRAWN, gate.shape[1])) * tensors[NORM]
    gates, ups = inputs @ gate.T, inputs @ up.T
    said = np.abs(gates / (1 + np.exp(-gates)) * ups).mean(0) * np.linalg.norm(down, axis=0)
    return np.sort(np.argsort(-said)[:width])


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a head's MLP narrower.")
    parser.add_argument("--head", type=pathlib.Path, required=True, help="folder of an EAGLE-1 head")
    parser.add_argument("--width", type=int, required=True, help="neurons to keep")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write the narrower head to")
    args = parser.parse_args()

    stored = load_file(args.head / "model.safetensors")
    neurons = len(stored[MLP.format("gate")])
    if not 0 < args.width < neurons:
        parser.error(f"--width {args.width}; the head has {neurons} neurons, expected fewer")
    kept = strongest({name: np.asarray(tensor, np.float64) for name, tensor in stored.items()}, args.width)
    for name, axis in (("gate", 0), ("up", 0), ("down", 1)):
        stored[MLP.format(name)] = stored[MLP.format(name)].take(kept, axis=axis)
    shutil.copytree(args.head, args.out, dirs_exist_ok=True)
    save_file(stored, args.out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((args.head / "config.json").read_text())
    (args.out / "config.json").write_text(json.dumps(config | {"intermediate_size": args.width}, indent=2) + "\n")
    print(f"{args.width} neurons kept: {args.out}")


if __name__ == "__main__":
    main()
