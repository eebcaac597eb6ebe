"""Everything that a start may fail for, opened before anything runs."""

import resource

from rdzv_server.config import Config
from rdzv_server.http import ports
from rdzv_server.http.door import connections_max
from rdzv_server.shell import log
from rdzv_server.shell.access import Access
from rdzv_server.shell.admission import Admission, capacity
from rdzv_server.shell.listen import listeners
from rdzv_server.shell.stored import open_stored


class Opened:
    """What a server needs from outside.

    Args:
        config: of the server.

    Raises:
        ListenError: an address cannot be listened on.
        AccessError: a token file or certificate cannot be used.
        StorageError: the state cannot be read.
    """

    def __init__(self, config: Config) -> None:
        self.access = Access(config)
        self.stored = open_stored(config)
        named = config.etcd_place()
        self.state = (
            "etcd" if named else "memory" if self.stored is None else self.stored.store.name
        )
        """Where state is kept, for people."""
        self.sockets = listeners(config.host, config.port)
        self.http = ports.open_sockets(
            config.http_port, config.http_host or config.host, config.port
        )
        if self.http:
            import rdzv_server.http.side  # noqa: F401 (a quarter of a second: a stall, in the loop)
        most = capacity(_raise_nofile())
        self.http_most = connections_max(most) if self.http else 0
        self.admission = Admission(max(1, most - self.http_most))
        self.port: int = self.sockets[0].getsockname()[1]


def _raise_nofile() -> int:
    """Each node costs a descriptor: take all that the hard limit gives. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.event("descriptors", was=soft, now=hard)
    return hard
