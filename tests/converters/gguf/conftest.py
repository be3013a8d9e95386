"""A small model for GGUF files, and the command."""

import pytest

from tests.converters import folders


@pytest.fixture
def llama():
    from tests.converters.gguf.gguf_files import SIZES

    return folders.target(**SIZES)


@pytest.fixture
def run_cli():
    """Runs a command as `eagle-jax` does."""
    from typer.testing import CliRunner

    from eagle_jax.cli import app

    return lambda *arguments: CliRunner().invoke(app, arguments)
