"""Crashes and faults of the disk under the store: every byte, every system call."""
