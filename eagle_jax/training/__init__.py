"""Trains draft heads for a frozen target."""
