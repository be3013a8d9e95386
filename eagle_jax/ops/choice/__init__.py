"""Chooses by measurement which candidate computes an operation on this device.

    shapes.py    what two calls have in common that one choice serves: all but rows and slots
    recorded.py  the calls of a model, found by tracing it
    arrays.py    arrays for such a call
    trial.py     one candidate, run, compared with the reference and timed, with a deadline
    findings.py  what was found, on disk, and the table that programs are traced by

A choice is one for all numbers of rows: a token is computed by the same code alone and in a batch.
"""
