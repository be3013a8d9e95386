"""What `benchmarks/gpu.sh` runs: one module a section, each in a process of its own, and what is made of their numbers.

A section's `run(scale, record)` records the rows of its tables as it finds them: `record(table, column=value, ...)`.
The first column is a row's name, and a later row of that name takes its place; so a section records what it knows after
every round, and what there is stays when it is ended.
"""
