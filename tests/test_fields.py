"""Fields of objects: what is inside an object is read as the object is."""

import pytest

from eagle_jax.fields import FieldError, Fields, flag, text, whole_number

BODY = {"name": "a", "none": None, "inner": {"deep": [{"x": 1}, {"x": 2, "y": 3}], "z": 1}}


def read(fields: Fields) -> list[str]:
    """Takes what is known, and tells what was passed over."""
    fields.take("name", text, "")
    inner = fields.object("inner")
    for one in inner.each("deep", inner.take("deep", lambda name, value: value, [])):
        one.require("x", whole_number(0, 9))
    fields.object("absent").take("x", flag, False)
    return fields.end()


def test_unknown_fields_are_named_wherever_they_stand():
    assert read(Fields(BODY, ignore_unknown=True)) == ["inner.deep[1].y", "inner.z"]
    with pytest.raises(FieldError, match=r"field 'inner.deep\[1\].y' is not known here; leave it out") as caught:
        read(Fields(BODY, ignore_unknown=False))
    assert caught.value.param == "inner.deep[1].y"
    assert read(Fields({"name": "a", "null": None}, ignore_unknown=False)) == []


@pytest.mark.parametrize(
    "inner, message",
    [
        (7, "inner=7; expected an object"),
        ({"deep": 7}, "inner.deep=7; expected a list of objects"),
        ({"deep": [7]}, r"inner.deep\[0\]=7; expected an object"),
        ({"deep": [{}]}, r"inner.deep\[0\].x is missing"),
        ({"deep": [{"x": 10}]}, r"inner.deep\[0\].x=10; expected a whole number from 0 to 9"),
    ],
)
def test_errors_say_where(inner, message):
    with pytest.raises(FieldError, match=message):
        read(Fields({"inner": inner}, ignore_unknown=True))
