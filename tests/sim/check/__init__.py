"""Judges recorded histories: `python -m tests.sim.check HISTORY…`. The format is told in `entries`."""
