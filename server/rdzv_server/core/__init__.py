"""The server as a pure function of its inputs: no IO, no clock, no randomness.

Start at `coordinator.py`; `model.py` holds the data, `quorum.py` the one decision.
"""
