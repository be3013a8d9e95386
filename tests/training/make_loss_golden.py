"""Writes the losses' golden files: `python tests/training/make_loss_golden.py`, with PyTorch installed; a few seconds.

Run it after changing a case in `loss_cases.py` or `dflash_cases.py`. It never runs our own code, so it cannot bless a
mistake of ours.
"""

import json

import dflash_cases
import dflash_torch
import loss_cases
import loss_torch
import numpy as np
from loss_parity import golden


def main() -> None:
    for kind, cases, answers in (
        ("eagle", loss_cases.CASES, loss_torch.answers),
        ("dflash", dflash_cases.CASES, dflash_torch.answers),
    ):
        arrays, path = {}, golden(kind)
        for case in cases:
            arrays[f"{case}/case"] = np.array(json.dumps(case.entries, sort_keys=True))
            arrays |= {f"{case}/{name}": values for name, values in answers(case).items()}
        np.savez_compressed(path, **arrays)
        print(f"{path}: {len(cases)} cases, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
