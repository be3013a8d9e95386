"""How another program answers: a line of JSON with its versions, then one for every line that asks."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def quiet_output() -> Any:
    """What answers are written to; whatever else the program prints goes where errors go."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(answers: Any, hello: dict[str, Any], answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers until nothing more is asked."""
    print(json.dumps(hello), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
