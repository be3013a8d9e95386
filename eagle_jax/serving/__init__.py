"""An OpenAI-compatible server for engines; it needs the extra `serve`.

It uses Starlette, not FastAPI, since requests are validated here: errors have OpenAI's format and are one sentence.
"""

from eagle_jax.serving.app import create_app
from eagle_jax.serving.server import Server, bound
from eagle_jax.serving.service import Limits, Service

__all__ = ["Limits", "Server", "Service", "bound", "create_app"]
