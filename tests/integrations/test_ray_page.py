"""The Python of docs/scaling.md runs as it stands there, with a tiny pair in the published one's place and the
tree whose programs the other tests have compiled.
"""

import json
import pathlib
import re
import urllib.request

import pytest
from small_engine import ENGINE

from eagle_jax.serving import bound

ray = pytest.importorskip("ray", reason="Ray is not installed: make ray")
serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed: make ray")

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "scaling.md"
PUBLISHED, ROOM = '"smollm2-135m-instruct"', '"max_tokens": 256'


def test_the_pages_python_runs(load, started, capsys):
    dataset, replicas = (
        block.replace(PUBLISHED, repr(load.args)[1:-1]).replace(ROOM, f'{ROOM}, "tree": {ENGINE["tree"]}')
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    )
    exec(compile(dataset, "scaling.md: a dataset of rows", "exec"), {})
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match(r"[01] \S", line)]
    assert sorted(line[0] for line in lines) == ["0", "1"]

    (listening,) = bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    listening.close()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        exec(compile(replicas, "scaling.md: replicas behind one address", "exec"), {})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30) as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["smollm2"]
    finally:
        serve.shutdown()
