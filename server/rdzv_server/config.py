"""The server's configuration, checked as a whole."""

import re
from typing import Literal

import msgspec

from rdzv_proto import PORT_DEFAULT
from rdzv_server.core.settings import Settings


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `rdzv-server` was told. Durations in seconds."""

    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    insecure_no_auth: bool = False
    store_ports: str = ""
    """`LOW-HIGH`, or empty: any free ports."""
    tcpstore: bool = False
    reconnect_grace_s: float = 1.0
    scale_up_delay_s: float = 1.0
    run_keep_s: float = 600.0
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    loop: Literal["auto", "uvloop", "asyncio"] = "auto"

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

    def settings(self) -> Settings:
        """The part that the core needs.

        Raises:
            ValueError: a value is out of its range.
        """
        return Settings(
            reconnect_grace_s=self.reconnect_grace_s,
            scale_up_delay_s=self.scale_up_delay_s,
            run_keep_s=self.run_keep_s,
        )
