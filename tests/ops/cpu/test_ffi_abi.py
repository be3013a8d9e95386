"""The table of offsets is that of the installed header, and a header that differs is noticed."""

import re
from pathlib import Path

import jax
import pytest

from eagle_jax.ops.cpu import ffi_abi


@pytest.fixture(scope="module")
def header() -> str:
    """What jaxlib ships."""
    return (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text()


def changed(header: str, pattern: str, replacement: str) -> str:
    """The header with its only match of the pattern replaced."""
    text, count = re.subn(pattern, replacement, header)
    assert count == 1, f"{pattern} matches {count} times"
    return text


def test_the_installed_header_matches(header):
    assert ffi_abi.mismatch() is None and ffi_abi.mismatch_in(header) is None


VERSION = r"the version of XLA's FFI is {}; expected 0\.3 or a later 0\.x"
BFLOAT, STRUCT = "XLA_FFI_DataType_BF16", "XLA_FFI_Buffer"
SIZED = "XLA_FFI_ThreadPool_NumThreads_Args"


@pytest.mark.parametrize(
    "pattern, replacement, reason",
    [
        (r"(#define XLA_FFI_API_MAJOR) \d+", r"\1 1", VERSION.format(r"1\.\d+")),
        (r"(#define XLA_FFI_API_MINOR) \d+", r"\1 2", VERSION.format(r"0\.2")),
        (r"#define XLA_FFI_API_MINOR \d+", "", VERSION.format("unknown")),
        (f"{BFLOAT} = 16", f"{BFLOAT} = 15", f"{BFLOAT} of XLA's FFI is 15; expected 16"),
        (f"{BFLOAT} = 16,?", "", f"{BFLOAT} of XLA's FFI is None; expected 16"),
        (rf"(struct {STRUCT} \{{)", r"\1 int64_t flags;", f"dtype of {STRUCT} of XLA's FFI is 24; expected 16"),
        (rf"struct {STRUCT} \{{", "struct Tensor {", f"dtype of {STRUCT} of XLA's FFI is None; expected 16"),
        (
            rf"(struct {SIZED} \{{[^}}]*)\n\}}",
            r"\1\n  int64_t more;\n}",
            f"sizeof of {SIZED} of XLA's FFI is 40; expected 32",
        ),
    ],
    ids=["major", "older minor", "no version", "enum value", "no enum", "offset", "no struct", "size"],
)
def test_a_header_that_differs_is_one_sentence(header, pattern, replacement, reason):
    found = ffi_abi.mismatch_in(changed(header, pattern, replacement))
    assert found is not None and re.fullmatch(reason, found)


def test_a_later_minor_version_is_accepted(header):
    later = changed(header, r"(#define XLA_FFI_API_MINOR) \d+", r"\1 99")
    assert ffi_abi.mismatch_in(later) is None


@pytest.mark.parametrize("text", ["", "#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 3\n", "struct {{{ \0"])
def test_what_is_no_header_is_a_reason_too(text):
    assert "of XLA's FFI is" in (ffi_abi.mismatch_in(text) or "")


def test_a_header_that_is_not_there_is_a_reason_too(tmp_path, monkeypatch):
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    assert (ffi_abi.mismatch() or "").startswith("jaxlib ships no readable header of its FFI (")
