"""Real processes for the end-to-end tests: servers, raw nodes, torchrun agents, and waiting for them.

Nothing sleeps for correctness: `until` waits for a condition up to a deadline, `stays` watches that a
condition holds for a while. Every process carries a marker in its environment, by which the fixture
finds and ends whatever a test left behind.
"""
