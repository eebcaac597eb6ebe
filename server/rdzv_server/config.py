"""The server's configuration, checked as a whole."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from rdzv_proto import PORT_DEFAULT
from rdzv_server.core.settings import Settings
from rdzv_server.http import ports
from rdzv_server.storage.etcd import place
from rdzv_server.storage.etcd.place import SCHEME, Credentials, Place

DATABASE = "rdzv.db"
"""In a data directory."""

WILDCARDS = frozenset(("0.0.0.0", "::", ""))  # nosec B104 (compared with, not listened on)

LEADER_LEASE_S_MIN, LEADER_LEASE_S_MAX = 2, 60
"""etcd grants no shorter one with its usual settings; with a longer one a job waits too long for a new leader."""


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
    """`memory`, `sqlite:PATH` or `etcd://HOST:PORT,…/PREFIX`; empty: SQLite in the data directory."""
    data_dir: str = ""
    """Empty: see `state_path_default`."""
    force_network_fs: bool = False
    """Keep it on a network file system too."""
    advertise: str = ""
    """HOST or HOST:PORT that clients are sent to; empty: `host` and `port`."""
    leader_lease_s: float = 5.0
    cluster_id: str = "rdzv"
    etcd_ca: str = ""
    etcd_cert: str = ""
    etcd_key: str = ""
    etcd_user: str = ""
    etcd_password_file: str = ""
    reconnect_grace_s: float = 1.0
    scale_up_delay_s: float = 1.0
    run_keep_s: float = 600.0
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_level_file: str = ""
    """Empty: none; the level stays what it is."""
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
        if self.state.startswith(SCHEME):
            self._check_etcd()
            return None
        if not self.state or self.state == "memory":
            return Path(self.data_dir) / DATABASE if self.data_dir and not self.state else None
        if self.data_dir:
            raise ValueError(
                "--state and --data-dir both say where state is kept; give one of them"
            )
        kind, _, path = self.state.partition(":")
        if kind != "sqlite" or not path:
            raise ValueError(
                f"--state {self.state}: must be memory, sqlite:PATH or etcd://HOST:PORT[,…]/PREFIX"
            )
        return Path(path)

    def etcd_place(self) -> Place | None:
        """The part of etcd that was named; None: none was.

        Raises:
            ValueError: that is none.
        """
        return place.parse(self.state) if self.state.startswith(SCHEME) else None

    def etcd_credentials(self) -> Credentials:
        """How to get into etcd."""
        ca, cert, key, password = (
            Path(p) if p else None
            for p in (self.etcd_ca, self.etcd_cert, self.etcd_key, self.etcd_password_file)
        )
        return Credentials(ca, cert, key, self.etcd_user, password)

    def address(self) -> str:
        """Where clients find this server, as HOST:PORT."""
        host = self.advertise or self.host
        if host.startswith("[") or host.count(":") == 1:
            return host if not host.endswith("]") else f"{host}:{self.port}"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def _check_etcd(self) -> None:
        """Settings of a cluster of servers.

        Raises:
            ValueError
        """
        place.parse(self.state)
        if self.data_dir:
            raise ValueError(
                "--state and --data-dir both say where state is kept; give one of them"
            )
        if not self.port:
            raise ValueError(
                "--port 0 goes not together with --state etcd://: clients must know the addresses of all "
                "servers beforehand"
            )
        if not self.advertise and self.host in WILDCARDS:
            raise ValueError(
                f"--host {self.host} with --state etcd:// needs --advertise HOST: clients are sent to the "
                "server that leads, and it cannot be known by that address"
            )
        if not LEADER_LEASE_S_MIN <= self.leader_lease_s <= LEADER_LEASE_S_MAX:
            raise ValueError(
                f"--leader-lease {self.leader_lease_s:g}s: must be from {LEADER_LEASE_S_MIN}s to "
                f"{LEADER_LEASE_S_MAX}s"
            )
        if not self.cluster_id or not self.cluster_id.isprintable():
            raise ValueError("--cluster-id must be a name")
        if self.etcd_key and not self.etcd_cert:
            raise ValueError("--etcd-key needs --etcd-cert")
        if bool(self.etcd_user) != bool(self.etcd_password_file):
            raise ValueError("--etcd-user and --etcd-password-file go together")

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
            leader=self.address() if self.state.startswith(SCHEME) else "",
        )
