"""Tells systemd how the server is: sd_notify(3), and the watchdog.

The watchdog's ping comes from the event loop: a loop that hangs does not send it, and systemd starts the
server anew. Nothing here raises, and without systemd nothing is done.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping

from rdzv_proto.text import visible

STATUS_CHARS_MAX = 256
"""One line in `systemctl status`."""


class Notifier:
    """Says it to the socket that systemd named.

    Args:
        environment: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID of it.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._ping_s = _ping_s(environment) if path else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """It listens; also the end of a reload."""
        self._send("READY=1", f"STATUS={_line(status)}")

    def status(self, text: str) -> None:
        """For people."""
        self._send(f"STATUS={_line(text)}")

    def reloading(self) -> None:
        """Files are read again, until `ready`."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """It shuts down."""
        self._send("STOPPING=1", "STATUS=shutting down")

    def start_watchdog(self) -> None:
        """Ping from now on, from the running loop, if systemd wants it: twice in its time."""
        self.stop_watchdog()
        if self._ping_s:
            self._send("WATCHDOG=1")
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._ping_s, self.start_watchdog)

    def stop_watchdog(self) -> None:
        """Ping no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A path may be too long, or no path at all; a full socket must not hold up the loop.
        with contextlib.suppress(OSError, ValueError):
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            with socket.socket(socket.AF_UNIX, kind) as sock:
                sock.sendto("\n".join(lines).encode(), self._address)


def _line(text: str) -> str:
    """On one line, or it could say something else to systemd."""
    return visible(text, STATUS_CHARS_MAX)


def _ping_s(environment: Mapping[str, str]) -> float:
    """Half of the watchdog's time; 0 if there is none, or it is meant for another process."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isascii() or not usec.isdigit() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(usec) / 2e6
