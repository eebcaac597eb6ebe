"""T16: whatever clients write, each line of the log is one event, and a terminal shows what is there."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rdzv_proto.framing import PREAMBLE
from rdzv_proto.messages import (
    Address,
    Barrier,
    CloseRun,
    Fence,
    HelloAdmin,
    Join,
    Joined,
    KvGet,
    KvSet,
    KvWait,
    Leave,
    MasterProbe,
    NcclFail,
    NcclGet,
    Policy,
    Request,
)
from tests.e2e.conftest import Cluster
from tests.e2e.kit.gauges import UNSEEN, parsed
from tests.e2e.kit.hostile import Raw, join
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until
from tests.unit.proto.tcpstore_bytes import HELLO as STORE_HELLO
from tests.unit.proto.tcpstore_bytes import get, set_

EVIL = (
    "a\ntimestamp=2020-01-01T00:00:00Z level=error event=forged run=victim",
    "a\r\nevent=forged level=error",
    'a\n{"event": "forged", "level": "error"}',
    "\x1b[2J\x1b[31mred\x1b[0m",
    "\x9b31mred",
    "a\x85event=forged",
    "a\u2028event=forged level=error",
    "a\u2029event=forged",
    "safe\u202egnirts",
    "\u2066isolated\u2069\u200b\ufeff",
    "tag\U000e0041\u00ad",
    "x event=forged level=error run=victim",
    'x" event=forged level="error',
    'x", "event": "forged", "y": "',
    "back\\slash\\",
    "\\n event=forged",
    "run=victim",
    "'quoted' `x` ${y} %s {0}",
)

EVENT = re.compile(r"[a-z][a-z0-9_]*")


def _reply(raw: Raw, message: Request) -> None:
    """Send it and wait for what comes of it, whatever that is."""
    with contextlib.suppress(AssertionError, TimeoutError):
        raw.ask(message, 0.5)


def _hello(field: str) -> Callable[[Server, str], None]:
    def send(server: Server, text: str) -> None:
        with Raw(server) as raw:
            raw.hello("r", "n", **{field: text})  # type: ignore[arg-type]
            _reply(raw, join(1))
            _reply(raw, Leave(kind="failed"))

    return send


def _inside(make: Callable[[str, Fence], Request]) -> Callable[[Server, str], None]:
    """Something that a member of a generation sends."""

    def send(server: Server, text: str) -> None:
        with Raw(server).node("inside", "n") as raw:
            _reply(raw, make(text, raw.good(join(1), Joined).fence))

    return send


def _close(server: Server, text: str) -> None:
    """A member ends its run, with a reason; each time another run, since that one stays closed."""
    with Raw(server).node(f"closed-{EVIL.index(text)}", "n") as raw:
        raw.good(join(1), Joined)
        _reply(raw, CloseRun(run=f"closed-{EVIL.index(text)}", detail=text))


def _policy(field: str) -> Callable[[Server, str], None]:
    def send(server: Server, text: str) -> None:
        with Raw(server).node("none", "first") as first, Raw(server).node("none", "n") as raw:
            first.post(join(2))
            policy: dict[str, Any] = {"min_nodes": 2, "max_nodes": 3, field: text}
            _reply(raw, Join(policy=Policy(**policy)))

    return send


def _bytes(make: Callable[[str], bytes]) -> Callable[[Server, str], None]:
    def send(server: Server, text: str) -> None:
        with Raw(server) as raw:
            raw.send(make(text))
            raw.end(10)

    return send


def _frame(text: str) -> bytes:
    """An operation of that name."""
    op = text.encode()
    body = b"\x94\x01\x01\xd9" + bytes((len(op),)) + op + b"\x80"
    return PREAMBLE + len(body).to_bytes(4, "big") + body + b"\0\0\0\x01\xc1"


def _tool(server: Server, text: str) -> None:
    with Raw(server) as raw:
        raw.send(PREAMBLE)
        _reply(raw, HelloAdmin(client=text))
    with Raw(server).admin() as raw:
        _reply(raw, CloseRun(run=text, detail=text))


def _store(server: Server, text: str) -> None:
    """A TCPStore client that asks for keys, and then for nonsense."""
    key = text.encode()
    with Raw(server) as raw:
        raw.send(STORE_HELLO + set_(key, key) + get(key) + b"\xee" + key)
        raw.end(10)


FIELDS: dict[str, Callable[[Server, str], None]] = {
    "run": _hello("run"),
    "node id": _hello("node_id"),
    "name": _hello("name"),
    "client software": _hello("client"),
    "tool": _tool,
    "leave detail": _inside(lambda t, f: Leave(kind="failed", detail=t)),
    "close detail": _close,
    "close of another": _inside(lambda t, f: CloseRun(run=t, detail=t)),
    "barrier": _inside(lambda t, f: Barrier(fence=f, name=t, timeout_ms=0)),
    "counted barrier": _inside(lambda t, f: Barrier(name=t, of="count", count=2, timeout_ms=1)),
    "key": _inside(lambda t, f: KvSet(fence=f, key=t, value=t.encode())),
    "missing key": _inside(lambda t, f: KvGet(key=t)),
    "missing keys": _inside(lambda t, f: KvWait(keys=[t], timeout_ms=1)),
    "communicator": _inside(lambda t, f: NcclGet(fence=f, group=t, rank=0, nranks=2, timeout_ms=1)),
    "reason of a communicator": _inside(
        lambda t, f: NcclFail(fence=f, group=t, attempt=0, rank=0, reason=t)
    ),
    "probe": _inside(
        lambda t, f: MasterProbe(fence=f, master=Address(host=t, port=1), error=t, after_ms=1)
    ),
    "expected nodes": _inside(lambda t, f: join(1, expected_nodes=[t])),
    "address": _inside(lambda t, f: join(1, address=Address(host=t, port=1, explicit=True))),
    "worker store": _policy("worker_store"),
    "owner": _policy("owner"),
    "operation": _bytes(_frame),
    "path": _bytes(lambda t: b"GET /" + t.encode() + b" HTTP/1.1\r\n\r\n"),
    "foreign": _bytes(lambda t: b"SSH-" + t.encode()),
    "bytes": _bytes(lambda t: b"\xfe" + t.encode()),
    "TCPStore": _store,
}


def _events(server: Server, form: str) -> Iterator[str]:
    for row in parsed(server, form):
        assert not UNSEEN.search("".join(row)), row
        event = row["event"].strip('"')
        assert EVENT.fullmatch(event), row
        assert row["level"] in ("debug", "info", "warning", "error"), row
        yield event


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_string_of_a_client_makes_or_breaks_a_line_of_the_log(
    cluster: Cluster, form: str
) -> None:
    """T16"""
    server = cluster.server("--tcpstore", "--log-format", form, "--log-level", "debug")
    known = set(_events(server, form))
    for field, send in FIELDS.items():
        before = len(server.log)
        for text in EVIL:
            send(server, text)
        until(lambda: server.log.endswith("\n"), 5, "the last line is whole")
        new = server.log[before:]
        for line in new.split("\n"):
            assert not UNSEEN.search(line), f"{field}: {line!r}"
        events = set(_events(server, form))
        assert "forged" not in events, field
        known |= events
    assert {"ready", "node_joined", "foreign_protocol", "malformed_request"} <= known
    assert server.run("victim") is None
    assert not [row for row in parsed(server, form) if row["run"].strip('"') == "victim"][1:]
    longest = max(map(len, server.log.split("\n")))
    print(f"{len(server.log.split(chr(10)))} lines, the longest has {longest} characters")
    assert longest < 4096


def rdzv(server: Server, *arguments: str) -> list[str]:
    """What the command prints, both streams, as lines of a terminal."""
    command = [sys.executable, "-m", "rdzv_client", "--server", server.endpoint, *arguments]
    done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert b"Traceback" not in done.stderr
    lines = (done.stdout + done.stderr).decode().split("\n")
    return [line for line in lines if line]


def test_status_prints_no_character_that_a_terminal_would_act_upon(cluster: Cluster) -> None:
    """T16: tables of runs, members, barriers, communicators and keys, and errors that quote."""
    server = cluster.server()
    passing = "safe\u202egnirts\u2066\u200b\ufeffx"
    with Raw(server).node(passing, passing, name=passing, client=passing) as raw:
        where = Address(host=passing, port=1, explicit=True)
        told = raw.good(join(1, address=where, expected_nodes=[passing]), Joined)
        _reply(raw, KvSet(key=passing, value=passing.encode()))
        _reply(raw, KvSet(key="a\n\x1b[31m\x9b\u2028b", value=b"a\n\x1b[31m"))
        raw.post(Barrier(name=passing, of="count", count=2, timeout_ms=60_000))
        raw.post(NcclGet(fence=told.fence, group=passing, rank=0, nranks=2, timeout_ms=60_000))
        _reply(raw, MasterProbe(fence=told.fence, master=told.master, error=passing))
        shown = {
            "runs": rdzv(server, "status"),
            "run": rdzv(server, "status", passing),
            "no such run": rdzv(server, "status", passing + "?"),
            "keys": rdzv(server, "kv", "list", passing, "--values"),
            "no such key": rdzv(server, "kv", "get", passing, passing + "?"),
            "barrier": rdzv(
                server, "barrier", passing, passing, "--count", "3", "--timeout", "0.1"
            ),
        }
        for what, lines in shown.items():
            assert lines, what
            for line in lines:
                assert not UNSEEN.search(line), f"{what}: {line!r}"
        assert any("gnirts" in line for line in shown["runs"]), "it is shown, escaped"
        raw.ask(CloseRun(run=passing, detail=passing))
        for line in rdzv(server, "status", passing):
            assert not UNSEEN.search(line), line
        told_json = json.loads("\n".join(rdzv(server, "status", "-o", "json")))
        assert [run["run"] for run in told_json["runs"]] == [passing], "programs get it as it is"
