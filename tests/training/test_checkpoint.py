"""What is said when a checkpoint cannot be written, whichever layer finds out first."""

import pytest

from eagle_jax.training import checkpoint

TENSORSTORE = (
    'OUT_OF_RANGE: Error writing "count/0" in OCDBT database at local file "/run/d/": '
    "Failed writing: \"/run/d/5c\": Failed to write 1944 bytes to file 24: File too large [os_error_code='27']"
)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(TENSORSTORE),
        OSError(27, "File too large"),
        OSError(27, "File too large", "/run/checkpoints/3/metrics"),
    ],
    ids=["tensorstore", "a file of Python's", "one with its name"],
)
def test_the_systems_own_words(error, tmp_path):
    with (
        pytest.raises(OSError, match=f"^the checkpoint could not be written to {tmp_path}: File too large$"),
        checkpoint._writing(tmp_path),
    ):
        raise error


def test_an_error_without_them_keeps_its_own(tmp_path):
    with pytest.raises(OSError, match="could not be written to .*: no more room$"), checkpoint._writing(tmp_path):
        raise OSError("no more room")
