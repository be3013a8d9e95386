"""An OpenAI-compatible server over engines of the api; it needs the extra `serve`.

Starlette and not FastAPI: fields are checked here anyway, so that errors have OpenAI's form and one sentence each.
"""

from eagle_jax.serving.app import create_app
from eagle_jax.serving.server import Server, bound
from eagle_jax.serving.service import Limits, Service

__all__ = ["Limits", "Server", "Service", "bound", "create_app"]
