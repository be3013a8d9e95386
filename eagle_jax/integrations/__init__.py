"""What other projects' programs hold engines with; each room needs an extra of its own."""
