"""Checks the options of structured output."""

import json
from collections.abc import Mapping
from typing import Any

from eagle_jax.structured.json_schema import PLACE_KEYWORD

FORMS = ("choices", "regex", "json_schema")  # the options of structured output; a request has at most one of them
ANY_OBJECT = {"type": "object"}


def check_choices(name: str, value: Any) -> tuple[str, ...]:
    """Checks the texts that an answer may be; returns them without duplicates."""
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(text, str) and text for text in value):
        raise ValueError(f"{name}={value!r}; expected a list of non-empty texts")
    for text in value:
        _check_text(name, text)
    return tuple(dict.fromkeys(value))


def check_regex(name: str, value: Any) -> str:
    """Checks a regular expression."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={value!r}; expected a regular expression")
    _check_text(name, value)
    return value


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has the lone surrogate {text[error.start]!r}; expected valid Unicode") from None


def check_json_schema(name: str, value: Any) -> str:
    """Checks a JSON schema, given as an object or as JSON text, and returns it as JSON text."""
    try:
        schema = json.loads(value) if isinstance(value, (str, bytes)) else value
        checked = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{name} is not a JSON schema ({error}); expected an object, or JSON text of one") from None
    if not isinstance(schema, (Mapping, bool)):
        raise ValueError(f"{name}={checked[:60]}; expected a JSON schema: an object, or JSON text of one")
    _check_text(name, checked)
    return checked


def schema_at(place: str, value: Any) -> Mapping[str, Any] | bool:
    """Checks a JSON schema and stores its place in the request, for error messages."""
    schema = json.loads(check_json_schema(place, value))
    return schema | {PLACE_KEYWORD: place} if isinstance(schema, dict) else schema


def check_text_pair(name: str, value: Any) -> tuple[str, str]:
    """Checks a pair of texts, such as the texts before and after a form."""
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{name}={value!r}; expected two texts")
    for text in value:
        _check_text(name, text)
    return value[0], value[1]
