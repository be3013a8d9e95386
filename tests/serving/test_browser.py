"""The page in a real browser."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "docs" / "figures" / "page.py"
NAMES = (os.environ.get("CHROMIUM") or "chromium", "chromium-browser", "google-chrome")


@pytest.mark.proof
@pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed")
@pytest.mark.skipif(not any(map(shutil.which, NAMES)), reason="no Chromium; apt-get install chromium, or set CHROMIUM")
def test_everything_that_the_page_does(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--to", str(tmp_path)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert {picture.name for picture in tmp_path.iterdir()} >= {"page.png", "race.png", "page-narrow.png"}
