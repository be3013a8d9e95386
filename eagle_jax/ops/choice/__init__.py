"""Chooses by measurement which candidate computes an operation on this device.

    shapes.py    the class of a call, which shares one choice: everything but rows and cache positions
    recorded.py  the calls of a model, found by tracing it
    arrays.py    arrays for a recorded call
    trial.py     runs a candidate, compares it with the reference and times it, with a time limit
    findings.py  measurements on disk, and the table of choices for tracing

A choice holds for all numbers of rows, so the same code computes a token alone and in a batch.
"""
