"""Real processes under real faults: `python -m tests.chaos`. What clients recorded is judged afterwards."""
