"""Two servers, three etcd, and one fault after the other: `python -m tests.ha`."""
