"""Three pages, and what is refused. Nothing here changes anything, takes a body or needs a credential.

A connection serves one request: Prometheus asks every 15 s and a probe every 10, so a connection that is
kept would only hold a descriptor.
"""

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from rdzv_server.http.door import Gone, Report
from rdzv_server.http.health import Health
from rdzv_server.http.metrics import CONTENT_TYPE, Renderer

HEADERS = {
    "Server": "rdzv",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'",
}
"""Of every answer. No page is for browsers; if one shows it, it shows text and loads nothing."""

TEXT = "text/plain; charset=utf-8"

READ_S = 5.0
"""From the connection to a whole request: a peer that says nothing is gone as soon as at the main port."""

LINE_BYTES_MAX = 1024
"""Of the request line. The longest that is answered has 13 characters."""

FIELD_BYTES_MAX = 4096
"""Of one header field: a browser's cookies for other ports of this host."""

FIELDS_MAX = 64
"""Header fields. Prometheus sends 5, a browser 15."""


def answer(status: int, text: str | bytes, content_type: str = TEXT) -> web.Response:
    """A whole answer, after which the connection is closed."""
    body = text if isinstance(text, bytes) else f"{text}\n".encode()
    made = web.Response(status=status, body=body, headers={"Content-Type": content_type, **HEADERS})
    made.force_close()
    return made


class Pages:
    """Answers requests.

    Args:
        health: of the server.
        renderer: of the metrics; no other page costs more than a line.
    """

    def __init__(self, health: Health, renderer: Renderer) -> None:
        self._health = health
        self._renderer = renderer

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer one request."""
        if request.method not in ("GET", "HEAD"):
            refused = answer(405, "read-only: GET or HEAD")
            refused.headers["Allow"] = "GET, HEAD"
            return refused
        match request.path:
            case "/healthz":
                return answer(200, "ok")
            case "/readyz":
                reason = self._health.reason
                return answer(503, reason) if reason else answer(200, "ok")
            case "/metrics":
                return answer(200, await self._renderer.page(), CONTENT_TYPE)
            case _:
                return answer(404, "here are /healthz, /readyz and /metrics")


class Conversation(RequestHandler):
    """aiohttp's end of a connection, with answers to faults that tell little and log one line.

    Args:
        manager: of aiohttp.
        report: writes to the log.
        gone: called when the connection is.
    """

    __slots__ = ("_gone", "_report")

    def __init__(
        self, manager: web.Server, loop: asyncio.AbstractEventLoop, report: Report, gone: Gone
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=READ_S,
            access_log=None,  # type: ignore[arg-type]
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=FIELDS_MAX,
            lingering_time=0,
            auto_decompress=False,
        )
        self._report = report
        self._gone = gone

    def connection_lost(self, exc: BaseException | None) -> None:
        """The socket is closed."""
        super().connection_lost(exc)
        self._gone()

    def log_exception(self, *args: object, **kw: object) -> None:
        """A fault between requests. aiohttp would write a traceback for each."""
        self._report("http_fault", "error", {"reason": str(kw.get("exc_info", args))})

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What was sent is no HTTP, or a page has a fault."""
        if status == 400:
            fields = {"peer": str(request.remote), "reason": "no HTTP request, or too large a one"}
            self._report("http_refused", "warning", fields)
            return answer(400, "not understood")
        self._report("http_fault", "error", {"page": request.path, "reason": repr(exc)})
        return answer(status, "a fault of the server; its log says more")
