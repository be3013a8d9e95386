"""`python -m eagle_jax` is the `eagle-jax` command."""

from eagle_jax.cli import main

main()
