"""The engine of these tests, of one shape so that its programs are compiled once."""

ENGINE = dict(rows=4, max_tokens=256, tree=(8, 2, 2))
