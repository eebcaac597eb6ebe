"""A next version that does not exist, made as a real one would be: of the protocol and of the stored records.

Protocol version 2 is a table beside that of version 1. It differs in every way in which versions may. `ping`, `pong` and the push `nudge` are new. A `barrier` has lost its
required `timeout_ms` and has `within_ms` with a default instead. `released` has lost `against`, and `kv_set` got
a field with a default that version 1 knows nothing of. Schema 2 marks the records of sessions, so that status
shows which of them were brought forward.
"""

from functools import partial
from typing import Any, ClassVar, cast

import pytest
from msgspec import field
from msgspec.structs import replace

from rdzv_proto import agreement, codec
from rdzv_proto.agreement import Spoken
from rdzv_proto.codec import Codec
from rdzv_proto.messages import (
    PUSHES,
    REPLIES,
    REQUESTS,
    AnyPush,
    AnyReply,
    AnyRequest,
    Barrier,
    Count,
    Fence,
    Key,
    KvSet,
    Message,
    Ms,
    Name,
    RankCount,
    Ranks,
    Released,
    Text,
    Value,
)
from rdzv_proto.versions import V1, Form, Version
from rdzv_server.core import dispatch
from rdzv_server.core.durable.stored import StoredSession, key_of, pack, unpack
from rdzv_server.core.events import Broadcast
from rdzv_server.core.model import Role, Session
from rdzv_server.core.tables import Tables
from rdzv_server.shell import stored
from rdzv_server.storage.base import Changes
from rdzv_server.storage.schema import CURRENT, Schema
from rdzv_server.storage.sqlite import SqliteStore

WITHIN_MS = 60_000


class Ping(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Answered, and told to everybody in the run."""

    op = "ping"
    answer: ClassVar[str] = "pong"
    recorded: ClassVar[bool] = False
    carries_values: ClassVar[bool] = False
    text: Text = ""


class Pong(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The answer."""

    op = "pong"
    text: Text = ""


class Nudge(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody pinged."""

    op = "nudge"
    by: Text


class Barrier2(Message, frozen=True, kw_only=True, omit_defaults=True):
    """`barrier` in version 2."""

    op = "barrier"
    fence: Fence | None = None
    name: Name
    of: str = "nodes"
    members: Ranks = field(default_factory=list)
    count: RankCount = 0
    round: Count | None = None
    payload: Value | None = None
    vote: bool | None = None
    within_ms: Ms = WITHIN_MS


class Released2(Message, frozen=True, kw_only=True, omit_defaults=True):
    """`released` in version 2."""

    op = "released"
    round: Count
    members: list[Count] = field(default_factory=list)
    payloads: list[bytes | None] = field(default_factory=list)
    committed: bool | None = None


class KvSet2(Message, frozen=True, kw_only=True, omit_defaults=True):
    """`kv_set` in version 2."""

    op = "kv_set"
    fence: Fence | None = None
    key: Key
    value: Value
    note: Text = ""


def _fields(message: Message, *without: str) -> dict[str, Any]:
    return {n: getattr(message, n) for n in message.__struct_fields__ if n not in without}


FORMS = {
    Barrier: Form(
        Barrier2,
        up=lambda m: Barrier(**_fields(m, "within_ms"), timeout_ms=m.within_ms),
        down=lambda m: Barrier2(**_fields(m, "timeout_ms"), within_ms=m.timeout_ms),
    ),
    Released: Form(
        Released2,
        up=lambda m: Released(**_fields(m)),
        down=lambda m: Released2(**_fields(m, "against")),
    ),
    KvSet: Form(
        KvSet2, up=lambda m: KvSet(**_fields(m, "note")), down=lambda m: KvSet2(**_fields(m))
    ),
}

V2 = Version(
    2,
    {**REQUESTS, Ping.op: Ping},
    {**REPLIES, Pong.op: Pong},
    {**PUSHES, Nudge.op: Nudge},
    cast("dict[type[Message], Form]", FORMS),
)

CODEC_2 = Codec(V2)
ONLY_1 = Spoken((codec.CURRENT,))
ONLY_2 = Spoken((CODEC_2,))
BOTH = Spoken((codec.CURRENT, CODEC_2))
LATER = Spoken((CODEC_2, Codec(Version(3, V2.requests, V2.replies, V2.pushes))))

assert V1.number == 1


def _ping(tables: Tables, session: Session, _: int, message: Any) -> AnyReply:
    """As a handler of the core."""
    of_run = [s.connection for s in tables.sessions.values() if s.run_id == session.run_id]
    conns = tuple(connection.id for connection in of_run if connection is not None)
    tables.effects.append(Broadcast(conns, cast("AnyPush", Nudge(by=session.node_id))))
    return cast("AnyReply", Pong(text=message.text))


def install(patch: pytest.MonkeyPatch, spoken: Spoken = BOTH) -> None:
    """From here on this process speaks version 2 as well, as client and as server."""
    patch.setattr(agreement, "SPOKEN", spoken)
    ping = cast("type[AnyRequest]", Ping)
    nodes = {**dispatch.HANDLERS[Role.NODE], ping: _ping}
    patch.setattr(dispatch, "HANDLERS", {**dispatch.HANDLERS, Role.NODE: nodes})


# --- stored records -------------------------------------------------------------------------------

MIGRATED = " (brought forward)"


def _mark(records: dict[bytes, bytes]) -> Changes:
    sessions = {
        key: unpack(value, StoredSession)
        for key, value in records.items()
        if key_of(key)[0] == "session"
    }
    return {
        key: pack(replace(session, client=session.client + MIGRATED))
        for key, session in sessions.items()
    }


SCHEMA_2 = Schema(CURRENT.version + 1, {CURRENT.version: _mark})


def install_schema(patch: pytest.MonkeyPatch) -> None:
    """From here on this process stores records of schema 2."""
    patch.setattr(stored, "SqliteStore", partial(SqliteStore, layout=SCHEMA_2))
