"""One section in a process of its own: its name, the file for its rows, and whether it is a rehearsal."""

import pathlib
import sys

from gpu.record import writer
from gpu.scale import FULL, TINY
from gpu.sections import SECTIONS

if __name__ == "__main__":
    name, path, size = sys.argv[1:]
    SECTIONS[name].load()(TINY if size == "tiny" else FULL, writer(pathlib.Path(path)))
