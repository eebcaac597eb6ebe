"""The server's configuration, checked as a whole."""

from typing import Literal

import msgspec

from rdzv_proto import PORT_DEFAULT
from rdzv_server.core.settings import Settings


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `rdzv-server` was told. Durations in seconds."""

    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    insecure_no_auth: bool = False
    reconnect_grace_s: float = 1.0
    scale_up_delay_s: float = 1.0
    run_keep_s: float = 600.0
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    loop: Literal["auto", "uvloop", "asyncio"] = "auto"

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
