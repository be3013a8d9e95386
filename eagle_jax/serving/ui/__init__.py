"""The page: a chat that shows which tokens were drafted, and a race against plain decoding."""

from eagle_jax.serving.ui.routes import Page

__all__ = ["Page"]
