"""What can be seen of a server from outside: memory, processor time, and its log, line by line."""

import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until

MIB = 1 << 20
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def waited_s(pid: int) -> float:
    """Seconds that a process was ready to run and had no processor: the machine's doing, not its own."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0


class Share:
    """Of one core, between the beginning and now."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._at, self._used = time.monotonic(), cpu_s(server.pid)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._at

    @property
    def of_a_core(self) -> float:
        return (cpu_s(self._server.pid) - self._used) / max(1e-9, self.elapsed_s)


def rss_mib(server: Server) -> float:
    """Memory that it holds now."""
    return server.rss_bytes() / MIB


def rss_peak_mib(server: Server) -> float:
    """The most that it ever held."""
    with open(f"/proc/{server.pid}/status") as file:
        found = re.search(r"VmHWM:\s+(\d+) kB", file.read())
    assert found
    return int(found[1]) / 1024


def rss_returns(server: Server, before_mib: float, timeout_s: float = 60.0) -> float:
    """Wait until memory is within a tenth of what it was (L9); returns what it is then."""
    until(
        lambda: rss_mib(server) <= 1.1 * before_mib,
        timeout_s,
        lambda: f"memory is back at {before_mib:.1f} MiB and a tenth: {rss_mib(server):.1f} MiB",
    )
    return rss_mib(server)


def descriptors(server: Server) -> int:
    """Open descriptors of the server."""
    return len(os.listdir(f"/proc/{server.pid}/fd"))


# --- the log --------------------------------------------------------------------------------------

_PAIR = re.compile(r'([A-Za-z_][\w.]*)=("(?:[^"\\]|\\.)*"|[^\s"=]*)(?: |\Z)')

UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""What does not print as itself: controls, and what turns a line around or cannot be seen."""


def logfmt(line: str) -> dict[str, str]:
    """One line as strict logfmt: every character belongs to a pair, and no key comes twice.

    Raises:
        ValueError: it is not.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(line):
        pair = _PAIR.match(line, at)
        if pair is None:
            raise ValueError(f"no pair at {at}: {line!r}")
        if pair[1] in found:
            raise ValueError(f"{pair[1]} twice: {line!r}")
        found[pair[1]] = pair[2]
        at = pair.end()
    return found


def parsed(server: Server, form: str = "text") -> list[dict[str, str]]:
    """The whole log. Lines end at line feeds only, as for every collector of logs.

    Raises:
        ValueError: a line does not parse.
    """
    lines = server.log.split("\n")
    assert lines.pop() == "", "the last line is whole"
    if form == "text":
        return [logfmt(line) for line in lines]
    rows = [json.loads(line) for line in lines]
    assert all(isinstance(row, dict) for row in rows)
    return rows


def most_in_a_second(server: Server, event: str) -> int:
    """The most log lines of an event within any calendar second."""
    stamps = [re.search(r"timestamp=(\S+)", line) for line in server.log_lines(event)]
    seconds = Counter(
        datetime.fromisoformat(found[1].strip('"').replace("Z", "+00:00")).replace(microsecond=0)
        for found in stamps
        if found
    )
    return max(seconds.values(), default=0)


@contextlib.contextmanager
def log_grows_slowly(server: Server, event: str, lines_per_s: float = 1.0) -> Iterator[None]:
    """At most so many lines of an event for each second that the block takes, and two more for its
    ends."""
    began, before = time.monotonic(), len(server.log_lines(event))
    yield
    took_s, lines = time.monotonic() - began, len(server.log_lines(event)) - before
    assert lines <= lines_per_s * took_s + 2, f"{lines} lines {event} in {took_s:.1f} s"
