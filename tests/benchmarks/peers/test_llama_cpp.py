"""llama.cpp's server as a method: what it is asked, and what is said if it does not start."""

import pathlib
import sys

import pytest

from benchmarks.peers import llama_cpp

SERVER = """#!{python}
import http.server, json, sys
if "--help" in sys.argv:
    print("--spec-type [none|ngram-simple|ngram-mod]")
    sys.exit()
mode = sys.argv[sys.argv.index("--spec-type") + 1] if "--spec-type" in sys.argv else "none"
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({{"status": "ok"}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["temperature"] == 0 and not asked["cache_prompt"] and asked["return_tokens"]
        timings = {{"predicted_ms": 500.0}} | ({{}} if mode == "none" else {{"draft_n": 6, "draft_n_accepted": 2}})
        self.answer({{"tokens": [sum(asked["prompt"])] * asked["n_predict"], "timings": timings}})
    def answer(self, what):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(what).encode())
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def binaries(folder: pathlib.Path, script: str) -> pathlib.Path:
    (folder / "llama-server").write_text(script.format(python=sys.executable))
    (folder / "llama-server").chmod(0o700)
    return folder


def test_each_mode_that_the_build_knows_is_a_method(tmp_path: pathlib.Path):
    with llama_cpp.methods(binaries(tmp_path, SERVER), tmp_path / "m.gguf", 4, until_end=False) as methods:
        assert list(methods) == ["llama.cpp plain", "llama.cpp ngram-simple", "llama.cpp ngram-mod"]
        made = {name: run([1, 2]) for name, run in methods.items()}
    assert all(one.token_ids == [3] * 4 and one.decoding == 0.5 and one.seconds > 0 for one in made.values())
    assert [one.committed / one.steps for one in made.values()] == [1.0, 2.0, 2.0]


def test_a_server_that_does_not_start_is_told_with_its_last_line(tmp_path: pathlib.Path):
    folder = binaries(tmp_path, "#!{python}\nraise SystemExit('no such model')\n")
    with (
        pytest.raises(ChildProcessError, match="did not start: no such model"),
        llama_cpp.methods(folder, tmp_path / "m.gguf", 4, until_end=False),
    ):
        pass


def test_a_folder_without_a_server(tmp_path: pathlib.Path):
    with (
        pytest.raises(ValueError, match="holds no llama-server"),
        llama_cpp.methods(tmp_path, tmp_path / "m.gguf", 4, until_end=False),
    ):
        pass
