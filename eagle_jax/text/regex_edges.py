"""The automaton that outlines-core makes of a regular expression; run as a program it reads one and writes that.

It imports no more than it needs: an expression of somebody else's is built in a process of its own, within limits,
since some short ones have automata that no memory holds.
"""

import io
import sys

import numpy as np


def edges_of(regex: str) -> dict[str, np.ndarray]:
    """Edges [e, 3] of state, byte and next state, the first state and those in which an expression is complete.

    Raises:
        ValueError: it is no expression that outlines-core can follow.
    """
    import outlines_core

    bytes_ = outlines_core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
    index = outlines_core.Index(regex, bytes_)
    edges = [
        (state, byte, to) for state, row in index.get_transitions().items() for byte, to in row.items() if byte < 256
    ]
    return {
        "edges": np.array(edges, np.int64).reshape(-1, 3),
        "start": np.array([index.get_initial_state()], np.int64),
        "final": np.array(sorted(index.get_final_states()), np.int64),
    }


def main() -> int:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
    except ImportError:  # Windows has no such limits
        pass
    try:
        found = edges_of(sys.stdin.buffer.read().decode())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 3
    out = io.BytesIO()
    np.savez(out, **found)  # type: ignore[arg-type]
    sys.stdout.buffer.write(out.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
