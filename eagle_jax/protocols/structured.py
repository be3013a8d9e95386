"""The form that an answer has to have, under the names of OpenAI, vLLM and SGLang."""

import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from eagle_jax.fields import Check, Fields, flag, text, wrong
from eagle_jax.requests.processing import check_processing
from eagle_jax.structured.checks import ANY_OBJECT, FORMS, schema_at

# vLLM's names, at the top and inside of its structured_outputs, for the options that they are.
GUIDED = {"guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choices"}
STRUCTURED = {"json": "json_schema", "regex": "regex", "choice": "choices"}
NEUTRAL: dict[str, list[Any]] = {"grammar": [], "structural_tag": [], "whitespace_pattern": []}
# Which library holds an answer to its form, and how; none of it changes what fits.
IGNORED = {"guided_decoding_backend": text}
IGNORED_STRUCTURED = {"_backend": text, "backend": text} | dict.fromkeys(
    ("disable_fallback", "disable_any_whitespace", "disable_additional_properties", "_backend_was_auto"), flag
)
PLACES = ("guided_json", "structured_outputs.json")  # where a schema stands that errors are about


def take_form(fields: Fields) -> dict[str, Any]:
    """Returns `choices`, `regex` or `json_schema` of a request, if it has one of them in any of its forms."""
    taken: list[tuple[str, str, Any]] = []  # the field, the option and its value
    for name in FORMS:
        taken.append((name, name, fields.take(name, _checked(name), None)))
    for name, option in GUIDED.items():
        taken.append((name, option, fields.take(name, _checked(option), None)))
    taken.append(("response_format", "json_schema", fields.take("response_format", _schema, None)))
    taken += _structured_outputs(fields)
    fields.ignore(IGNORED)
    fields.only({"guided_whitespace_pattern": []})
    stated = [(field, option, value) for field, option, value in taken if value not in (None, [])]
    if len(stated) > 1:
        one, other = stated[0][0], stated[1][0]
        raise wrong(other, f"{one} beside {other}; an answer has one form, so give one of them")
    if stated and importlib.util.find_spec("outlines_core") is None:
        raise wrong(stated[0][0], f"{stated[0][0]} needs outlines-core, which is not installed here; leave it out")
    return {option: schema_at(field, value) if field in PLACES else value for field, option, value in stated}


def schema_of_response_format(value: Any) -> Mapping[str, Any] | bool | None:
    """Returns the schema that OpenAI's `response_format` means; None for text.

    Raises:
        ValueError: it is not valid.
    """
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
    where, inner = "structured_outputs.", fields.object("structured_outputs")
    taken = [(where + name, option, inner.take(name, _checked(option), None)) for name, option in STRUCTURED.items()]
    if inner.take("json_object", flag, False):
        taken.append((where + "json_object", "json_schema", ANY_OBJECT))
    inner.only(NEUTRAL)
    inner.ignore(IGNORED_STRUCTURED)
    return taken


def _checked(option: str) -> Check[Any]:
    def check(name: str, value: Any) -> Any:
        if value == [] and option == "choices":  # as vLLM's clients send it where there is nothing to choose from
            return value
        try:
            check_processing({option: value})
            return value
        except ValueError as error:
            raise wrong(name, str(error)) from None

    return check
