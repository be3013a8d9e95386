"""Writes the golden file of DFlash's losses: `python tests/training/make_dflash_golden.py`, with PyTorch installed.

Run it after changing a case in `dflash_cases.py`. It never runs our own code, so it cannot bless a mistake of ours.
"""

import json
import pathlib

import dflash_torch
import numpy as np
from dflash_cases import CASES

GOLDEN = pathlib.Path(__file__).with_name("golden_dflash_losses.npz")


def main() -> None:
    arrays = {}
    for case in CASES:
        arrays[f"{case}/case"] = np.array(json.dumps(case.entries, sort_keys=True))
        arrays |= {f"{case}/{name}": values for name, values in dflash_torch.answers(case).items()}
    np.savez_compressed(GOLDEN, **arrays)
    print(f"{GOLDEN}: {len(CASES)} cases, {GOLDEN.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
