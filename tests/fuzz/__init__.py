"""Inputs that nobody would send: coverage-guided, by grammar, and against a live server."""
