"""docs/extending.md, followed to the letter."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_drafter_of_the_docs_drafts(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})  # its own assertion: the same tokens as plain decoding
    assert float(capsys.readouterr().out.split()[0]) > 1.1
