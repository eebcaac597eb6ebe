"""The server's configuration, checked as a whole."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from rdzv_proto import PORT_DEFAULT
from rdzv_server.core.settings import Settings
from rdzv_server.http import ports

DATABASE = "rdzv.db"
"""In a data directory."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `rdzv-server` was told. Durations in seconds."""

    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    token_file: str = ""
    """Empty: nobody has to prove anything."""
    tls_cert: str = ""
    """Empty: no TLS."""
    tls_key: str = ""
    """Empty: it is in the file of the certificate."""
    tls_client_ca: str = ""
    """Empty: clients need no certificate."""
    http_port: str = ""
    """A port, `off`, or empty: one above `port`."""
    http_host: str = ""
    """Empty: as `host`."""
    metrics_runs: bool = False
    insecure_no_auth: bool = False
    store_ports: str = ""
    """`LOW-HIGH`, or empty: any free ports."""
    tcpstore: bool = False
    state: str = ""
    """`memory` or `sqlite:PATH`; empty: SQLite in the data directory."""
    data_dir: str = ""
    """Empty: see `state_path_default`."""
    force_network_fs: bool = False
    """Keep it on a network file system too."""
    reconnect_grace_s: float = 1.0
    scale_up_delay_s: float = 1.0
    run_keep_s: float = 600.0
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    loop: Literal["auto", "uvloop", "asyncio"] = "auto"

    def check_http(self) -> None:
        """What is said of the HTTP side.

        Raises:
            ValueError
        """
        ports.check(self.http_port)

    def check_access(self) -> None:
        """Settings of who may come in that contradict each other.

        Raises:
            ValueError
        """
        if self.token_file and self.insecure_no_auth:
            raise ValueError(
                "--token-file and --insecure-no-auth contradict each other: with a token file every "
                "client must prove that it knows a token"
            )
        if self.token_file and self.tcpstore:
            raise ValueError(
                "--tcpstore goes not together with --token-file: torch's TCPStore protocol cannot "
                "authenticate anybody, so whoever reaches the port would get past the token. Jobs "
                "that use --rdzv-backend=rdzv need no --tcpstore"
            )
        if self.tls_cert and self.tcpstore:
            raise ValueError(
                "--tcpstore goes not together with --tls-cert: TCPStore clients speak no TLS"
            )
        if not self.tls_cert and (self.tls_key or self.tls_client_ca):
            raise ValueError("--tls-key and --tls-client-ca need --tls-cert")

    def store_port_range(self) -> tuple[int, int]:
        """Ports for workers' stores, both ends included; (0, 0) for any free port.

        Raises:
            ValueError: that is no range of ports.
        """
        if not self.store_ports:
            return 0, 0
        found = re.fullmatch(r"\s*(\d{1,5})\s*-\s*(\d{1,5})\s*", self.store_ports)
        low, high = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= low <= high <= 65535:
            raise ValueError(
                f"--store-ports {self.store_ports}: must be LOW-HIGH with "
                "1 <= LOW <= HIGH <= 65535, as in 29600-29699"
            )
        return low, high

    def state_path(self) -> Path | None:
        """The database that was named; None: none was.

        Raises:
            ValueError: that is no way to keep state, or two ways.
        """
        if not self.state or self.state == "memory":
            return Path(self.data_dir) / DATABASE if self.data_dir and not self.state else None
        if self.data_dir:
            raise ValueError(
                "--state and --data-dir both say where state is kept; give one of them"
            )
        kind, _, path = self.state.partition(":")
        if kind != "sqlite" or not path:
            raise ValueError(f"--state {self.state}: must be memory or sqlite:PATH")
        return Path(path)

    def state_path_default(self, environ: Mapping[str, str]) -> Path | None:
        """Where state is kept if nothing was said: a folder of the service, or of the user, for each address.
        None where that makes no sense: a free port is another one next time.

        Args:
            environ: of the process.
        """
        if self.state or not self.port:
            return None
        if service := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
            return Path(service) / DATABASE
        home = Path(environ.get("XDG_STATE_HOME", ""))
        if not home.is_absolute():  # as the XDG specification says
            try:
                home = Path.home() / ".local" / "state"
            except RuntimeError:
                return None
        return Path(home) / "rdzv" / f"{self.host}-{self.port}".replace("/", "_") / DATABASE

    def settings(self, state: str = "memory") -> Settings:
        """The part that the core needs.

        Args:
            state: where state is kept, for people.

        Raises:
            ValueError: a value is out of its range.
        """
        return Settings(
            reconnect_grace_s=self.reconnect_grace_s,
            scale_up_delay_s=self.scale_up_delay_s,
            run_keep_s=self.run_keep_s,
            guarded=bool(self.token_file),
            state=state,
        )
