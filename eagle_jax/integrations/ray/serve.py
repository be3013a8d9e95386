"""A deployment for Ray Serve: replicas of the OpenAI-compatible server behind one address."""

from collections.abc import Callable, Mapping
from typing import Any

from ray import serve

from eagle_jax.api import Engine, EngineClosed, Model
from eagle_jax.integrations.ray.arguments import check_load, engine_options
from eagle_jax.serving import Limits, create_app

DEFAULT_ROWS = 8  # of an engine
# Requests of a replica per row of its engine: one is answered, the next is waiting; further ones wait in Ray's router.
REQUESTS_PER_ROW = 2


def deployment(
    load: Callable[[], Model],
    name: str,
    *,
    engine: Mapping[str, Any] | None = None,
    limits: Limits = Limits(),
    server: Mapping[str, Any] | None = None,
    **options: Any,
) -> serve.Application:
    """Returns an application for `ray.serve.run`, whose replicas serve the API of `eagle-jax serve`, an engine each.

    A replica is healthy while its engine takes requests; Ray replaces unhealthy replicas. A replica that Ray stops
    gets no more requests and finishes those that it has, within `limits.drain_seconds`. Each replica has its own
    prefix cache, and `/metrics` reports on the replica that answers.

    Args:
        load: returns the model, called in the replica: `functools.partial(eagle_jax.load, "smollm2-135m-instruct")`.
        name: name of the model in requests.
        engine: arguments of `Engine`, such as `rows`, `max_tokens`, `drafter`.
        limits: limits of one request.
        server: arguments of `create_app`, such as `api_key`.
        options: options of the deployment, as `ray.serve.deployment` takes them: `num_replicas`, `ray_actor_options`,
            `autoscaling_config`, or, instead of the values here, `max_ongoing_requests` and
            `graceful_shutdown_timeout_s`.

    Raises:
        TypeError: `load` is not callable, or `engine` has an unknown option.
    """
    check_load(load)
    engine = {"rows": DEFAULT_ROWS} | engine_options(engine)
    defaults: dict[str, Any] = {
        "name": "eagle_jax",
        "max_ongoing_requests": REQUESTS_PER_ROW * engine["rows"],
        "graceful_shutdown_timeout_s": limits.drain_seconds,
    }
    replica = serve.deployment(serve.ingress()(_Replica)).options(**defaults | options)
    return replica.bind(load, name, engine, {**(server or {}), "limits": limits})


class _Replica:
    """The server's application with its engine; Ray calls these methods by name."""

    def __init__(self, load: Callable[[], Model], name: str, engine: Mapping[str, Any], server: Mapping[str, Any]):
        self._engine = Engine(load(), **engine)
        self._application = create_app({name: self._engine}, **server)

    def __serve_build_asgi_app__(self) -> Any:
        return self._application

    def check_health(self) -> None:
        """Raises EngineClosed if the engine takes no more requests; Ray then starts another replica."""
        if not self._engine.alive:
            raise EngineClosed("the engine takes no more requests; start another")

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close(drain=False)
