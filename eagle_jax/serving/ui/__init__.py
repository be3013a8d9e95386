"""The page: a conversation in which one sees what was guessed, and a race against plain decoding."""

from eagle_jax.serving.ui.routes import Page

__all__ = ["Page"]
