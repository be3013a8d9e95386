"""Engines in the programs of other projects; each package needs its extra."""
