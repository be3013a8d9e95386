"""Decoding: draft trees, drawing tokens, verification."""
