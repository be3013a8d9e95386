"""A deployment for Ray Serve: replicas of the OpenAI-compatible server behind one address."""

from collections.abc import Callable, Mapping
from typing import Any

from ray import serve

from eagle_jax.api import Engine, EngineClosed, Model
from eagle_jax.integrations.ray.arguments import check_load, engine_options
from eagle_jax.serving import Limits, create_app

SLOTS = 8  # that an engine has unless its arguments say otherwise
# A replica's requests for each slot: the next is there when one is answered, and the rest wait where any may take them.
REQUESTS = 2


def deployment(
    load: Callable[[], Model],
    name: str,
    *,
    engine: Mapping[str, Any] | None = None,
    limits: Limits = Limits(),
    server: Mapping[str, Any] | None = None,
    **options: Any,
) -> serve.Application:
    """Makes an application for `ray.serve.run`: each replica holds an engine, and answers what `eagle-jax serve` does.

    A replica is healthy while its engine takes requests; one that is not is replaced. When Ray stops one it gets no
    more requests and ends those that it has, for `limits.drain_seconds` at most. Prefixes of prompts are kept in each
    replica for itself, and `/metrics` reports on the one that answers.

    Args:
        load: makes the model, in the replica: `functools.partial(eagle_jax.load, "smollm2-135m-instruct")`.
        name: what requests call the model.
        engine: arguments of `Engine`, such as `rows`, `max_tokens`, `drafter`.
        limits: what one request may take.
        server: arguments of `create_app`, such as `api_key`.
        options: options of the deployment, as `ray.serve.deployment` takes them: `num_replicas`, `ray_actor_options`,
            `autoscaling_config`, or, instead of the values here, `max_ongoing_requests` and
            `graceful_shutdown_timeout_s`.

    Raises:
        TypeError: `load` is no function, or `engine` has what no engine takes.
    """
    check_load(load)
    engine = {"rows": SLOTS} | engine_options(engine)
    defaults: dict[str, Any] = {
        "name": "eagle_jax",
        "max_ongoing_requests": REQUESTS * engine["rows"],
        "graceful_shutdown_timeout_s": limits.drain_seconds,
    }
    replica = serve.deployment(serve.ingress()(_Replica)).options(**defaults | options)
    return replica.bind(load, name, engine, {**(server or {}), "limits": limits})


class _Replica:
    """The server's application over an engine of its own; Ray calls these methods by their names."""

    def __init__(self, load: Callable[[], Model], name: str, engine: Mapping[str, Any], server: Mapping[str, Any]):
        self._engine = Engine(load(), **engine)
        self._application = create_app({name: self._engine}, **server)

    def __serve_build_asgi_app__(self) -> Any:
        return self._application

    def check_health(self) -> None:
        """Raises where the engine takes no requests any more; Ray then starts another replica."""
        if not self._engine.alive:
            raise EngineClosed("the engine takes no more requests; start it anew")

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close(drain=False)
