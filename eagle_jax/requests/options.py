"""The options of `generate` and `stream`, validated once."""

import dataclasses
import functools
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from eagle_jax.checks import finite, is_whole_number, whole_number
from eagle_jax.decoding.sampling import Sampling, Settings, request_keys
from eagle_jax.loop.state import MAX_TOP_LOGPROBS
from eagle_jax.requests.processing import LIST_OPTIONS, LogitsOptions, check_processing

MAX_INT32 = 2**31 - 1
MAX_SAMPLES = 2**30  # keeps sample numbers apart from positions, which seed the noise too


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(LogitsOptions):
    """Validated options of one request, with the meanings of `generate`."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    stop: tuple[str, ...]
    logprobs: bool
    top_logprobs: int = 0

    def __post_init__(self):
        for name, minimum in (("max_new_tokens", 1), ("top_k", 0)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), minimum))
        for name in ("temperature", "top_p", "min_p"):
            object.__setattr__(self, name, finite(name, getattr(self, name)))
        if not isinstance(self.logprobs, (bool, np.bool_)):
            raise ValueError(f"logprobs={self.logprobs!r}; expected True or False")
        object.__setattr__(self, "top_logprobs", whole_number("top_logprobs", self.top_logprobs, 0))
        if self.top_logprobs > MAX_TOP_LOGPROBS:
            raise ValueError(f"top_logprobs={self.top_logprobs}; expected at most {MAX_TOP_LOGPROBS}")
        object.__setattr__(self, "logprobs", bool(self.logprobs or self.top_logprobs))
        if self.temperature < 0:
            raise ValueError(
                f"temperature={self.temperature} is negative; 0 is greedy, 1 samples the model's own distribution"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is outside (0, 1]; 1 keeps every token")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p} is outside [0, 1]; 0 keeps every token")
        for string in self.stop:
            if not isinstance(string, str) or not string:
                raise ValueError(f"stop string {string!r}; expected text of at least one character")

    @functools.cached_property
    def mode(self) -> Sampling:
        """The sampling mode to compile for these options."""
        sampled = self.temperature > 0
        top_k, top_p = sampled and self.top_k > 0, sampled and self.top_p < 1
        return Sampling(
            sampled=sampled,
            filtered=top_k or top_p or (sampled and self.min_p > 0),
            top_k=top_k,
            top_p=top_p,
            logprobs=self.logprobs + (self.top_logprobs > 0),
            structured=self.form is not None,
            mixed=False,
        )


def options_for(requests: int, *, stop: tuple[str, ...] = (), logprobs: bool = False, **values: Any) -> list[Options]:
    """Returns the options of each request; a value is the same for all requests, or a list with one per request.

    Raises:
        TypeError: an option is unknown.
    """
    unknown = values.keys() - {field.name for field in dataclasses.fields(Options)}
    if unknown:
        raise TypeError(f"there is no option {min(unknown)!r}; see help(eagle_jax.api.Processing) and generate's")
    columns = {name: per_request(name, value, requests) for name, value in values.items()}
    return [
        Options(stop=stop, logprobs=logprobs, **check_processing({name: column[i] for name, column in columns.items()}))
        for i in range(requests)
    ]


def per_request(name: str, value: Any, requests: int) -> list[Any]:
    """Returns one value per request, from a single value or a list; options that are lists need a list of lists."""
    listed = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(listed, Sequence) or isinstance(listed, (str, bytes)):
        return [listed] * requests
    if name in LIST_OPTIONS and not (
        listed and all(item is None or isinstance(item, (list, tuple)) for item in listed)
    ):
        return [listed] * requests
    if len(listed) != requests:
        raise ValueError(
            f"{len(listed)} values of {name} for {requests} prompts; give one for all of them, or one each"
        )
    return list(listed)


def mode_of(options: Iterable[Options]) -> Sampling:
    """Returns the sampling mode that serves any batch of requests with these options."""
    modes = list(dict.fromkeys(request_options.mode for request_options in options))
    if len(modes) == 1:
        return modes[0]
    return dataclasses.replace(joint_mode(modes), structured=None, mixed=True)


def joint_mode(modes: Sequence[Sampling]) -> Sampling:
    """Returns the sampling mode for rows with these modes together: the union of their features."""
    flags = {name: any(getattr(mode, name) for mode in modes) for name in ("sampled", "filtered", "top_k", "top_p")}
    structured, logprobs = any(mode.structured for mode in modes), max((mode.logprobs for mode in modes), default=0)
    return Sampling(**flags, logprobs=logprobs, structured=structured, mixed=False)


def settings_of(options: Sequence[Options], seeds: Sequence[int], samples: Sequence[int]) -> Settings:
    """Returns the sampling settings of a batch, from the options, seed and sample number of each row."""

    def column(name: str) -> np.ndarray:
        return np.array([getattr(request_options, name) for request_options in options], np.float32)

    return Settings(
        temperature=column("temperature"),
        top_k=np.array([min(request_options.top_k, MAX_INT32) for request_options in options], np.int32),
        top_p=column("top_p"),
        min_p=column("min_p"),
        key=request_keys(seeds, samples),
    )


def stop_strings(stop: str | Sequence[str] | None, tokenizer: Any) -> tuple[str, ...]:
    """Checks the option `stop` and returns its strings."""
    is_list = isinstance(stop, Sequence) and not isinstance(stop, (str, bytes))
    if stop is not None and not isinstance(stop, str) and not is_list:
        raise ValueError(f"stop={stop!r}; expected text, or a list of texts")
    if stop and tokenizer is None:
        raise ValueError("stop strings need a tokenizer to find them, but the model's folder has none; leave stop out")
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def seeds_for(seed: int | Sequence[int], prompts: int) -> list[int]:
    """Checks the option `seed` and returns one seed per prompt."""
    seeds = per_request("seed", seed, prompts)
    for value in seeds:
        if not is_whole_number(value) or not 0 <= value < 2**63:
            raise ValueError(f"seed={reprlib.repr(value)}; expected a whole number from 0 to 2**63 - 1")
    return [int(value) for value in seeds]


def sample_number(number: Any) -> int:
    """Checks the number of an answer among several to one prompt and seed, from 0."""
    if whole_number("sample", number, 0) >= MAX_SAMPLES:
        raise ValueError(f"sample={number}; expected a whole number below {MAX_SAMPLES}")
    return int(number)
