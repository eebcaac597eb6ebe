"""What the HTTP side answers."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from rdzv_server.http.health import Health
from rdzv_server.http.pages import FIELD_BYTES_MAX, FIELDS_MAX, LINE_BYTES_MAX
from rdzv_server.http.side import Side
from rdzv_server.shell.listen import bind
from tests.unit.server.http.kit import Answer, Log, ask, get, serving, sources


@dataclass
class Running:
    """A side that listens."""

    side: Side
    port: int
    health: Health
    log: Log

    async def get(self, path: str, method: str = "GET", *lines: str) -> Answer:
        found = await ask(self.port, get(path, method, *lines))
        assert found is not None
        return found


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    sockets = bind("127.0.0.1", 0)
    health, log = serving(), Log()
    side = Side(sockets, sources(health=health), log)
    side.start()
    yield Running(side, sockets[0].getsockname()[1], health, log)
    await side.close()


async def test_health_is_one_line(running: Running) -> None:
    found = await running.get("/healthz")
    assert (found.status, found.body) == (200, b"ok\n")


async def test_health_is_good_as_long_as_the_loop_answers(running: Running) -> None:
    for running.health.started in (False, True):
        for running.health.stopping in (False, True):
            assert (await running.get("/healthz")).status == 200


async def test_a_server_that_serves_is_ready(running: Running) -> None:
    found = await running.get("/readyz")
    assert (found.status, found.body) == (200, b"ok\n")


@pytest.mark.parametrize(
    ("what", "value", "words"),
    [
        ("started", False, b"starting"),
        ("stopping", True, b"shutting down"),
        ("read_only", "no space left on device", b"read-only: no space left on device"),
        ("standby", "10.0.0.7:29500", b"standby: 10.0.0.7:29500 leads"),
    ],
)
async def test_a_server_that_does_not_serve_says_why_in_one_line(
    running: Running, what: str, value: object, words: bytes
) -> None:
    before = getattr(running.health, what)
    setattr(running.health, what, value)
    found = await running.get("/readyz")
    assert found.status == 503
    assert words in found.body
    assert found.body.count(b"\n") == 1
    setattr(running.health, what, before)
    assert (await running.get("/readyz")).status == 200


async def test_metrics_are_text_that_prometheus_reads(running: Running) -> None:
    found = await running.get("/metrics")
    assert found.status == 200
    assert found.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert found.body.startswith(b"# HELP ")
    assert found.body.endswith(b"\n")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_head_has_the_headers_and_no_body(running: Running, path: str) -> None:
    full, head = await running.get(path), await running.get(path, "HEAD")
    assert head.status == full.status == 200
    assert head.body == b""
    assert head.headers["Content-Length"] == full.headers["Content-Length"]


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"]
)
async def test_nothing_can_be_changed(running: Running, method: str) -> None:
    found = await running.get("/metrics", method)
    assert found.status == 405
    assert found.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../metrics", "/api/v1", "//metrics", "/%00"])
async def test_there_is_nothing_else(running: Running, path: str) -> None:
    assert (await running.get(path)).status == 404


async def test_a_query_changes_nothing(running: Running) -> None:
    assert (await running.get("/healthz?x=1")).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/nothing"])
async def test_no_answer_is_kept_guessed_at_or_loads_anything(running: Running, path: str) -> None:
    found = await running.get(path, "GET", "Origin: http://evil.test")
    assert found.headers["Cache-Control"] == "no-store"
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert found.headers["Content-Security-Policy"] == "default-src 'none'"
    assert found.headers["Server"] == "rdzv"
    assert found.headers["Connection"] == "close"
    assert not [name for name in found.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\r\n\r\n",
        b"RDZV\x01\x00\x00\x00\r\n\r\n",
        get("/" + "a" * LINE_BYTES_MAX),
        get("/healthz", "GET", "Cookie: " + "a" * (FIELD_BYTES_MAX + 1)),
        get("/healthz", "GET", *(f"X-{n}: 1" for n in range(FIELDS_MAX + 1))),
        get("/healthz", "GET", "Content-Length: nonsense"),
        get("/<script>alert(1)</script> x"),
    ],
    ids=["tls", "rdzv", "line", "field", "fields", "length", "script"],
)
async def test_what_is_no_request_is_refused_without_an_echo_and_with_one_line(
    running: Running, request_bytes: bytes
) -> None:
    found = await ask(running.port, request_bytes)
    assert found is not None
    assert (found.status, found.body) == (400, b"not understood\n")
    assert found.headers["Content-Security-Policy"] == "default-src 'none'"
    assert running.log.events == ["http_refused"]


async def test_a_body_is_not_waited_for(running: Running) -> None:
    found = await running.get("/healthz", "GET", "Content-Length: 1000000000")
    assert found.status == 200


async def test_only_the_first_of_several_requests_is_answered(running: Running) -> None:
    found = await ask(running.port, get("/healthz") * 50)
    assert found is not None
    assert found.body == b"ok\n"


async def test_a_fault_in_a_page_tells_the_log_and_not_the_asker(running: Running) -> None:
    running.side._renderer.close()
    found = await running.get("/metrics")
    assert found.status == 500
    assert b"log says more" in found.body
    assert b"executor" not in found.body
    assert running.log.events == ["http_fault"]
    assert (await running.get("/healthz")).status == 200
