"""Writes the golden files: `python tests/models/make_golden.py`, with PyTorch and transformers 5 installed; about 20 s.

Run it after changing a case in `parity_cases.py` or `cycle_cases.py`. It never runs our own code, so it cannot bless a
mistake of ours.
"""

import json
import pathlib

import cycle_torch
import eagle3_torch
import eagle_torch
import family_torch
import llama_torch
import numpy as np
from cycle_cases import CYCLES
from family_cases import FAMILIES
from parity_cases import HEADS, HEADS3, TARGETS

GOLDEN = pathlib.Path(__file__).parent / "golden"


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for file, cases, answers in (
        ("llama", TARGETS, llama_torch.answers),
        ("eagle", HEADS, eagle_torch.answers),
        ("eagle3", HEADS3, eagle3_torch.answers),
        ("cycle", CYCLES, cycle_torch.answers),
        ("family", FAMILIES.values(), family_torch.answers),
    ):
        arrays = {}
        for case in cases:
            arrays[f"{case}/config"] = np.array(json.dumps(case.entries, sort_keys=True))
            arrays |= {f"{case}/{name}": values for name, values in answers(case).items()}
        np.savez_compressed(GOLDEN / f"{file}.npz", **arrays)
        print(f"{GOLDEN / file}.npz: {len(cases)} cases, {(GOLDEN / file).with_suffix('.npz').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
