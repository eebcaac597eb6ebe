"""Unique ids of NCCL communicators: minted by a rank, handed out by the server, each of them once."""
