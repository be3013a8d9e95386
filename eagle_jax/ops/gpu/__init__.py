"""Pallas kernels for NVIDIA GPUs."""
