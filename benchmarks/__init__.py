"""Benchmarks in rooms by question: `python -m benchmarks.<room>.<script>` in the root of a checkout."""
