"""The `eagle-jax` command: arguments in, calls of the api, text out."""

from eagle_jax.cli.app import app, main

__all__ = ["app", "main"]
