"""Lets Ctrl-C end the command without a traceback while it still imports its libraries, which takes seconds.

This module imports nothing slow, and the package imports it first.
"""

import pathlib
import signal
import sys

_changed = False  # whether `begin` changed anything


def begin() -> None:
    """Gives Ctrl-C its default action in the `eagle-jax` command; other processes are left alone."""
    global _changed
    name = pathlib.Path(sys.argv[0]).name if sys.argv else ""
    is_command = name.removesuffix(".exe") == "eagle-jax" or (name == "-m" and "eagle_jax" in sys.orig_argv)
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _changed = True


def end() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, if `begin` changed that."""
    if _changed:
        signal.signal(signal.SIGINT, signal.default_int_handler)
