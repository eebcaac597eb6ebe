"""The server as torch's TCPStore: one key space for each generation, on a port of its own."""
