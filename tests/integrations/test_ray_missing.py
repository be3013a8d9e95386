"""Without Ray the package says what to install."""

import subprocess
import sys


def test_without_ray_there_is_one_sentence():
    code = "import sys; sys.modules['ray'] = None; import eagle_jax.integrations.ray.data"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    said = "ImportError: Ray is not installed; install the extra: pip install 'eagle-jax[ray]'"
    assert shown.returncode == 1 and shown.stderr.strip().endswith(said)
