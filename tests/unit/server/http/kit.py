"""Numbers for the HTTP side to show, and a client that speaks HTTP byte by byte."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from rdzv_server.http.health import Health
from rdzv_server.http.numbers import Sources
from rdzv_server.shell.admission import Admission
from tests.lab import Lab
from tests.unit.server.shell.waiting import PATIENCE_S


def serving() -> Health:
    health = Health()
    health.started = True
    return health


def sources(lab: Lab | None = None, **more: object) -> Sources:
    """Of a server that serves; runs are those of the laboratory."""
    given: dict[str, object] = {
        "tables": (lab or Lab()).core.tables,
        "admission": Admission(1_000),
        "health": serving(),
        "requests": lambda: 0,
        "refusals": {},
    }
    return Sources(**given | more)  # type: ignore[arg-type]


class Log:
    """What was reported."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Mapping[str, object]]] = []

    def __call__(self, event: str, level: str, fields: Mapping[str, object]) -> None:
        self.lines.append((event, level, fields))

    @property
    def events(self) -> list[str]:
        return [event for event, _, _ in self.lines]


@dataclass
class Answer:
    """Of an HTTP server."""

    status: int
    headers: dict[str, str]
    body: bytes


async def ask(port: int, request: bytes) -> Answer | None:
    """Send bytes, read until the server closes; None if it said nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        said = await asyncio.wait_for(reader.read(), PATIENCE_S)
    except ConnectionError:
        return None
    finally:
        writer.close()
    return parse(said) if said else None


def parse(said: bytes) -> Answer:
    head, _, body = said.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), headers, body)


def get(path: str, method: str = "GET", *lines: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", *lines, "", "")).encode()
