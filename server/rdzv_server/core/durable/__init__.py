"""What survives a restart of the server: records of the core's state, and how they become state again."""
