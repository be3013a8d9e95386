"""Engines on the machines of a Ray cluster; needs the extra `ray`.

`data.answer` adds answers to the rows of a Ray Dataset, `serve.deployment` is the server in several replicas behind one
address. Where engines run, what waits for them, and what is tried again after a loss is Ray's work.
"""

try:
    import ray  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ImportError("Ray is not installed; install the extra: pip install 'eagle-jax[ray]'") from None
