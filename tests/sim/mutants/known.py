"""Which seed finds each mutant: `make test` plays these, with the mutant and without it."""

KNOWN: dict[str, int] = {}
"""Filled from `python -m tests.sim --mutants`; after a change of the simulator that moves them, again."""
