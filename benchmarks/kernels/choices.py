"""Which candidate computes each operation of decoding fastest on this device, and which are wrong or fail?

    python -m benchmarks.kernels.choices --shape 8b

Measures what `eagle-jax tune --ops` does, for a synthetic target of a published shape, and keeps it likewise: programs
that are traced afterwards take what was fastest.
"""

from benchmarks.common.chart import PUBLISHED
from benchmarks.common.command import begin, parser
from benchmarks.common.synthetic import NAMES, Shape, make
from benchmarks.common.tables import show
from eagle_jax.loading.operations import measure_operations
from eagle_jax.ops.choice.findings import table


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--shape", default="8b", help=f"one of {', '.join(NAMES)} (%(default)s)")
    own.add_argument("--dtype", default="bfloat16", help="of weights and caches (%(default)s)")
    own.add_argument("--quantize", help="int8 or int4, as for `load`")
    own.add_argument("--seconds", type=float, default=30.0, help="after which no candidate is begun (%(default)s)")
    options = own.parse_args()
    model = make(Shape.of(options.shape), PUBLISHED, quantize=options.quantize, dtype=options.dtype).model
    found = measure_operations(model, anew=True, seconds=options.seconds)
    taken = table()
    rows = [
        (
            one.operation,
            one.shape,
            one.candidate,
            "-" if one.seconds is None else ", ".join(f"{1e6 * seconds:.1f}" for seconds in one.seconds),
            "-" if one.error is None else f"{one.error:.1e}",
            one.reason or ("taken" if taken.get((one.operation, one.shape)) == one.candidate else ""),
        )
        for one in found
    ]
    columns = ("operation", "shape", "candidate", "microseconds", "largest deviation", "")
    show(f"Operations of {options.shape}, {options.dtype}", columns, rows)


if __name__ == "__main__":
    begin(main)
