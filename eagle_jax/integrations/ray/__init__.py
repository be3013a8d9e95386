"""Engines on the machines of a Ray cluster; needs the extra `ray`.

`data.answer` adds answers to the rows of a Ray Dataset; `serve.deployment` runs replicas of the server behind one
address. Ray places the engines, queues their work, and retries it after a failure.
"""

try:
    import ray  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ImportError("Ray is not installed; install the extra: pip install 'eagle-jax[ray]'") from None
