"""Ctrl-C while the command still imports what it needs, which takes seconds: it ends at once and without a traceback.

This module imports nothing that takes time, and is the first that the package imports.
"""

import pathlib
import signal
import sys

_changed = False  # whether `begin` changed anything


def begin() -> None:
    """Lets the system end a process that is the `eagle-jax` command; of others nothing is changed."""
    global _changed
    name = pathlib.Path(sys.argv[0]).name if sys.argv else ""
    is_command = name.removesuffix(".exe") == "eagle-jax" or (name == "-m" and "eagle_jax" in sys.orig_argv)
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _changed = True


def end() -> None:
    """Makes Ctrl-C a KeyboardInterrupt again, if `begin` changed that."""
    if _changed:
        signal.signal(signal.SIGINT, signal.default_int_handler)
