"""Parses the options of structured output, under the names of OpenAI, vLLM and SGLang."""

import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from eagle_jax.fields import Check, Fields, flag, text, wrong
from eagle_jax.requests.processing import check_processing
from eagle_jax.structured.checks import ANY_OBJECT, FORMS, schema_at

# vLLM's names of the options, at the top level and inside `structured_outputs`.
GUIDED = {"guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choices"}
STRUCTURED = {"json": "json_schema", "regex": "regex", "choice": "choices"}
NEUTRAL: dict[str, list[Any]] = {"grammar": [], "structural_tag": [], "whitespace_pattern": []}
# The choice of a backend does not change which answers are valid.
IGNORED = {"guided_decoding_backend": text}
IGNORED_STRUCTURED = {"_backend": text, "backend": text} | dict.fromkeys(
    ("disable_fallback", "disable_any_whitespace", "disable_additional_properties", "_backend_was_auto"), flag
)
SCHEMA_FIELDS = ("guided_json", "structured_outputs.json")  # fields with a schema whose place errors name


def take_form(fields: Fields) -> dict[str, Any]:
    """Returns the option `choices`, `regex` or `json_schema` of a request, under any of its names; or nothing."""
    options: list[tuple[str, str, Any]] = []  # the field, the option and its value
    for name in FORMS:
        options.append((name, name, fields.take(name, _check_for(name), None)))
    for name, option in GUIDED.items():
        options.append((name, option, fields.take(name, _check_for(option), None)))
    options.append(("response_format", "json_schema", fields.take("response_format", _schema, None)))
    options += _structured_outputs(fields)
    fields.ignore(IGNORED)
    fields.only({"guided_whitespace_pattern": []})
    stated = [(field, option, value) for field, option, value in options if value not in (None, [])]
    if len(stated) > 1:
        first, second = stated[0][0], stated[1][0]
        raise wrong(second, f"{first} with {second}; an answer has one form, so give one of them")
    if stated and importlib.util.find_spec("outlines_core") is None:
        raise wrong(stated[0][0], f"{stated[0][0]} needs outlines-core, which is not installed here; leave it out")
    return {option: schema_at(field, value) if field in SCHEMA_FIELDS else value for field, option, value in stated}


def schema_of_response_format(value: Any) -> Mapping[str, Any] | bool | None:
    """Returns the schema of OpenAI's `response_format`; None for text. Raises ValueError if it is not valid."""
    expected = (
        'expected {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": ...}}'
    )
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise ValueError(f"response_format={json.dumps(value)[:60]}; {expected}")
    inner = value.get("json_schema", {}) if kind == "json_schema" else {}
    accepted = {"schema", "name", "description", "strict"}
    if not isinstance(inner, Mapping) or value.keys() - {"type", "json_schema"} or inner.keys() - accepted:
        raise ValueError(f"response_format has unknown fields; {expected}")
    if kind != "json_schema":
        return ANY_OBJECT if kind == "json_object" else None
    if "schema" not in inner:
        raise ValueError(f"response_format has no schema; {expected}")
    return schema_at("response_format.json_schema.schema", inner["schema"])


def _schema(name: str, value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"type", "schema"}:  # as llama.cpp, Together and Fireworks have it
        value = {"type": "json_schema", "json_schema": {"schema": value["schema"]}}
    try:
        return schema_of_response_format(value)
    except ValueError as error:
        raise wrong(name, str(error)) from None


def _structured_outputs(fields: Fields) -> list[tuple[str, str, Any]]:
    prefix, inner = "structured_outputs.", fields.object("structured_outputs")
    options = [
        (prefix + name, option, inner.take(name, _check_for(option), None)) for name, option in STRUCTURED.items()
    ]
    if inner.take("json_object", flag, False):
        options.append((prefix + "json_object", "json_schema", ANY_OBJECT))
    inner.only(NEUTRAL)
    inner.ignore(IGNORED_STRUCTURED)
    return options


def _check_for(option: str) -> Check[Any]:
    def check(name: str, value: Any) -> Any:
        if value == [] and option == "choices":  # vLLM's clients send an empty list by default
            return value
        try:
            check_processing({option: value})
            return value
        except ValueError as error:
            raise wrong(name, str(error)) from None

    return check
