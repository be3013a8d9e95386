"""Writes the losses' golden file: `python tests/training/make_loss_golden.py`, with PyTorch installed; a few seconds.

Run it after changing a case in `loss_cases.py`. It never runs our own code, so it cannot bless a mistake of ours.
"""

import json
import pathlib

import loss_torch
import numpy as np
from loss_cases import CASES

GOLDEN = pathlib.Path(__file__).with_name("golden_losses.npz")


def main() -> None:
    arrays = {}
    for case in CASES:
        arrays[f"{case}/case"] = np.array(json.dumps(case.entries, sort_keys=True))
        arrays |= {f"{case}/{name}": values for name, values in loss_torch.answers(case).items()}
    np.savez_compressed(GOLDEN, **arrays)
    print(f"{GOLDEN}: {len(CASES)} cases, {GOLDEN.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
