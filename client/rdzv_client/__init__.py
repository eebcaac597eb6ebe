"""The rdzv client library."""
