"""The wire protocol of rdzv: one table of messages, one of errors, and the framing between them.

Nothing here does IO or knows the server or the client. Read `messages.py` first; `proto/PROTOCOL.md`
is generated from it.
"""

__version__ = "0.1.0"

PROTOCOL_VERSION = 1
"""The newest version of the protocol; `agreement` holds all that are spoken. Version N serves N and N - 1."""

PORT_DEFAULT = 29500
"""Port of `rdzv-server`, and of an endpoint that names none (torch's own default master port)."""

__all__ = ["PORT_DEFAULT", "PROTOCOL_VERSION", "__version__"]
