"""A server in a thread, on a free port, and clients of it."""

import threading
from typing import Any

import openai

from eagle_jax.api import Engine
from eagle_jax.serving import Server, bound, create_app

KEY = "a key"


class Served:
    """A server that runs, and clients of it."""

    def __init__(self, engines: dict[str, Engine], **how: Any):
        self.engines = engines
        self.app = create_app(engines, **how)
        self.server = Server(self.app)
        (listening,) = bound("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        ready = threading.Event()
        self.server._on_ready = lambda addresses: ready.set()
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]})
        self.thread.start()
        assert ready.wait(30.0)

    def client(self, **how: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": KEY, "max_retries": 0, "timeout": 60.0} | how)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()
