"""The table of families in docs/models.md is made of rows; running this file writes it."""

import pathlib
import re

from eagle_jax.converters.families import dense
from eagle_jax.converters.families.rows import FAMILIES

DOCS = pathlib.Path(__file__).parents[3] / "docs"
HEADER = "| family | `model_type` | what differs from Llama |\n|---|---|---|\n"
TABLE = re.compile(re.escape(HEADER) + r"(?:\|.*\n)*")


def table() -> str:
    """The table, a line for each row."""
    rows = (f"| {family.title} | `{name}` | {family.differs} |\n" for name, family in FAMILIES.items())
    return HEADER + "".join(rows)


def test_the_table_is_that_of_the_rows():
    assert TABLE.findall((DOCS / "models.md").read_text()) == [table()]


def test_the_row_that_is_shown_is_a_real_one():
    """docs/extending.md shows the row of OLMo 2, and the row of its test."""
    text = (DOCS / "extending.md").read_text()
    source = pathlib.Path(dense.__file__).read_text()
    cases = (pathlib.Path(__file__).parents[2] / "models" / "family_cases.py").read_text()
    shown = re.findall(r"```text\n(    \"olmo2\": .*?)```", text, re.DOTALL)
    assert len(shown) == 2 and shown[0] in source and shown[1] in cases


if __name__ == "__main__":
    page = DOCS / "models.md"
    page.write_text(TABLE.sub(lambda _: table(), page.read_text()))
