"""The server's metrics, for Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from eagle_jax.api import Engine, Ticket

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
LENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0)


class _StepCollector(Collector):
    """Counts and times of steps, by batch size and number of tree nodes (1 is plain decoding)."""

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of all engines."""
        names, labels = ("steps", "tokens", "seconds"), ["model", "rows", "nodes"]
        descriptions = ("Steps of the loop.", "Tokens that they committed.", "Seconds that they took.")
        metrics = [
            CounterMetricFamily(f"eagle_jax_loop_{name}", text, labels=labels)
            for name, text in zip(names, descriptions, strict=True)
        ]
        for model, engine in self.engines.items():
            for rows, budget_use in engine.spent:
                for metric, name in zip(metrics, names, strict=True):
                    metric.add_metric([model, str(rows), str(budget_use.nodes)], getattr(budget_use, name))
        yield from metrics


class Metrics:
    """Metrics of all engines, labelled by model name."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ["model"]
        self._answers = Counter(
            "eagle_jax_answers", "Answers that ended, by how.", [*labels, "finish_reason"], registry=registry
        )
        self._prompt_tokens = Counter("eagle_jax_prompt_tokens", "Tokens of prompts.", labels, registry=registry)
        self._cached_tokens, self._hits = (
            Counter(f"eagle_jax_{name}", description, labels, registry=registry)
            for name, description in (
                ("cached_tokens", "Tokens of prompts that were not read anew."),
                ("prefix_hits", "Prompts that started from a kept prefix."),
            )
        )
        self._tokens = Counter("eagle_jax_completion_tokens", "Tokens of answers.", labels, registry=registry)
        self._steps = Counter("eagle_jax_steps", "Steps, by answer.", labels, registry=registry)
        self._accepted = Histogram(
            "eagle_jax_accepted_length",
            "Tokens that a step committed, the target's own included.",
            labels,
            buckets=LENGTHS,
            registry=registry,
        )
        self._waited, self._to_first, self._seconds = (
            Histogram(f"eagle_jax_{name}_seconds", description, labels, buckets=SECONDS, registry=registry)
            for name, description in (
                ("queue", "From a request to its place in the batch."),
                ("time_to_first_token", "From a request to its first token."),
                ("answer", "From a request to the end of its answer."),
            )
        )
        self._queue, self._busy, self._slots, self._prefix_bytes = (
            Gauge(f"eagle_jax_{name}", description, labels, registry=registry)
            for name, description in (
                ("queue_length", "Requests that wait."),
                ("slots_busy", "Requests that are being answered."),
                ("slots", "Requests that can be answered at a time."),
                ("prefix_cache_bytes", "Memory that kept prefixes take."),
            )
        )
        self._responses = Counter(
            "eagle_jax_responses", "Responses, by path and status.", ["path", "status"], registry=registry
        )

        self._steps_by_size = _StepCollector()
        registry.register(self._steps_by_size)

    def watch(self, name: str, engine: Engine) -> None:
        """Starts collecting the metrics of an engine."""
        self._queue.labels(name).set_function(lambda: engine.load.waiting)
        self._busy.labels(name).set_function(lambda: engine.load.busy)
        self._slots.labels(name).set_function(lambda: engine.load.rows)
        self._prefix_bytes.labels(name).set_function(lambda: engine.load.prefix_bytes)
        self._steps_by_size.engines[name] = engine
        engine.watch(lambda ticket: self._on_answer(name, ticket))

    def count_response(self, path: str, status: int) -> None:
        self._responses.labels(path, str(status)).inc()

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' format."""
        return generate_latest(self._registry)

    def _on_answer(self, name: str, ticket: Ticket) -> None:
        result = ticket.latest.result
        self._answers.labels(name, "error" if result is None else result.finish_reason).inc()
        for histogram, seconds in (
            (self._waited, ticket.waited),
            (self._to_first, ticket.to_first),
            (self._seconds, ticket.seconds),
        ):
            if seconds is not None:
                histogram.labels(name).observe(seconds)
        if result is None or ticket.waited is None:  # the prompt was not prefilled
            return
        self._prompt_tokens.labels(name).inc(result.prompt_tokens)
        self._cached_tokens.labels(name).inc(result.stats.cached_tokens)
        self._hits.labels(name).inc(result.stats.cached_tokens > 0)
        self._tokens.labels(name).inc(len(result.token_ids))
        self._steps.labels(name).inc(result.stats.steps)
        accepted = self._accepted.labels(name)
        for length in result.stats.accepted_lengths:
            accepted.observe(length)
