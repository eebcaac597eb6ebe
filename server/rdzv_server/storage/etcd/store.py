"""Records in etcd, written by the one server that leads.

Every write is one transaction that compares two keys. The leader key's create_revision is the fence: who was
deposed writes nothing. The key `head` holds the name of the last write, so that a write whose answer was lost,
and that arrives late, cannot come after a later one.

etcd takes at most 128 operations and 1.5 MiB in a transaction. What is larger is laid down first, in parts, then
made valid by one small transaction, then brought into the records; `load` finishes what was interrupted.
"""

import asyncio
import hashlib
import itertools
import time
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from rdzv_server.storage.base import Changes, StorageError
from rdzv_server.storage.etcd.election import Term
from rdzv_server.storage.etcd.gateway import Gateway, decoded, encoded, first, value_of
from rdzv_server.storage.etcd.place import Place
from rdzv_server.storage.lead import Lead
from rdzv_server.storage.schema import CURRENT, Schema

OPERATIONS_MAX = 100
"""In a transaction; etcd's --max-txn-ops is 128, and its keys of ours come on top."""

BYTES_MAX = 1_200_000
"""Of keys and values in a transaction; etcd's --max-request-bytes is 1.5 MiB. One record may have 1 MiB."""

PAGE = 500
"""Records read at once."""

SCHEMA = b"\xc1schema"
"""The record with the version of all others. No name of theirs begins so: msgpack never uses that byte."""

PATIENCE_S = 10.0
"""For reading a page at the start, and for the marker."""

_Operation = dict[str, Any]
T = TypeVar("T")


class EtcdStore:
    """One cluster's records. Its calls come from a thread beside the event loop of the gateway.

    Args:
        gateway: to etcd.
        place: of the cluster.
        term: of the server that writes.
        lead: ended when a write is refused because another one leads.
        cluster: its name; a prefix in which another cluster's name stands is refused.
        layout: version and migrations of the records.
    """

    def __init__(
        self,
        gateway: Gateway,
        place: Place,
        term: Term,
        lead: Lead,
        cluster: str,
        layout: Schema = CURRENT,
    ) -> None:
        self._gateway, self._place, self._term, self._lead = gateway, place, term, lead
        self._cluster, self._layout = cluster, layout
        self.migrated: tuple[int, int] | None = None
        """Schema versions, of before and now, if `load` brought the records forward."""
        self._loop = asyncio.get_running_loop()
        self._head = ""
        """Name of the last write."""
        self._unsure: set[str] = set()
        """Names of writes after it whose answer was lost."""
        self._names = itertools.count(1)
        self._unfinished = False
        """A large commit may be valid and not in the records yet."""

    @property
    def name(self) -> str:
        """What READY and `rdzv status` call it."""
        return "etcd"

    def load(self) -> dict[bytes, bytes]:
        """Everything that is stored. Once, before the first commit.

        Raises:
            StorageError: etcd does not answer, the prefix is another's, or another server leads by now.
        """
        self._await(check_cluster(self._gateway, self._place, self._cluster))
        head = self._get(b"head")
        self._head = "" if head is None else head.decode()
        if self._get(b"cluster") is None:
            version = self._put(self._key(b"records", SCHEMA), b"%d" % self._layout.version)
            self._write([self._put(self._key(b"cluster"), self._cluster.encode()), version])
        self._finish()
        base = self._key(b"records", b"")
        records = {key[len(base) :]: value for key, value in self._below(base)}
        self._migrate(int(records.pop(SCHEMA, b"1")), records)
        return records

    def commit(self, changes: Changes) -> None:
        """Store changes, all or none.

        Raises:
            StorageError: nothing of it counts as done; commit it again, alone or with later changes.
        """
        if self._unfinished:
            self._write([])  # whatever is under way behind it comes too late now
            self._finish()
        batches = list(_batches(changes))
        if len(batches) == 1:
            self._write(self._operations(batches[0]))
            return
        self._drop_parts()
        data = msgspec.msgpack.encode(list(changes.items()))
        parts = [data[at : at + BYTES_MAX // 2] for at in range(0, len(data), BYTES_MAX // 2)]
        for number, part in enumerate(parts):
            self._write([self._put(self._part(number), part)])
        digest = hashlib.sha256(data).digest()
        self._unfinished = True
        self._write([self._put(self._key(b"large"), msgspec.msgpack.encode((len(parts), digest)))])
        self._bring_in(batches)

    def tidy(self) -> None:
        """Nothing: compaction is etcd's and its operator's."""

    def close(self) -> None:
        """Nothing: the gateway is closed by who opened it."""

    def _migrate(self, was: int, records: dict[bytes, bytes]) -> None:
        """Bring records of an older version forward, in one commit, together with their version."""
        now = self._layout.version
        back = "restore a snapshot of etcd from before the upgrade"
        self._layout.check(self._place.name, was, back=back)
        if was < now:
            self.commit({**self._layout.forward(was, records), SCHEMA: b"%d" % now})
            self.migrated = was, now

    # --- large commits ------------------------------------------------------------------------

    def _finish(self) -> None:
        """Bring in a large commit that became valid, and drop one that did not."""
        marker = self._get(b"large")
        if marker is None:
            self._unfinished = False
            self._drop_parts()
            return
        count, digest = msgspec.msgpack.decode(marker, type=tuple[int, bytes])
        parts = [self._get(b"parts", b"%06d" % number) or b"" for number in range(count)]
        data = b"".join(parts)
        if hashlib.sha256(data).digest() != digest:
            text = f"{self._place.name}: the parts of a large commit are not what was written"
            raise StorageError(text, "corrupt")
        pairs = msgspec.msgpack.decode(data, type=list[tuple[bytes, bytes | None]])
        self._bring_in(list(_batches(dict(pairs))))

    def _bring_in(self, batches: list[dict[bytes, bytes | None]]) -> None:
        for batch in batches:
            self._write(self._operations(batch))
        self._write([self._delete(self._key(b"large"))])
        self._unfinished = False
        self._drop_parts()

    def _drop_parts(self) -> None:
        low = self._key(b"parts", b"")
        self._write(
            [{"request_delete_range": {"key": encoded(low), "range_end": encoded(_end(low))}}]
        )

    def _part(self, number: int) -> bytes:
        return self._key(b"parts", b"%06d" % number)

    # --- one transaction ----------------------------------------------------------------------

    def _write(self, operations: list[_Operation]) -> None:
        """Do operations, all or none, if this server leads and nobody wrote since."""
        name = f"{self._term.fence}.{next(self._names)}"
        while True:
            answer = self._transact(name, operations)
            if answer.get("succeeded"):
                break
            leader, head = (
                first(response.get("response_range", {})) for response in answer["responses"]
            )
            if leader is None or int(leader["create_revision"]) != self._term.fence:
                self._deposed()
            found = "" if head is None else value_of(head).decode()
            if found == name:
                break  # an earlier attempt of this very call got through
            if found not in self._unsure:
                text = f"{self._place.name}: somebody else wrote {found!r} after {self._head!r}"
                raise StorageError(text, "corrupt")
            self._head = found  # a write that counted as failed got through; go on behind it
        self._head = name
        self._unsure.clear()

    def _transact(self, name: str, operations: list[_Operation]) -> dict[str, Any]:
        leader, head = encoded(self._key(b"leader")), encoded(self._key(b"head"))
        behind: dict[str, Any] = {"key": head, "result": "EQUAL"}
        if self._head:
            behind |= {"target": "VALUE", "value": encoded(self._head.encode())}
        else:
            behind |= {"target": "CREATE", "create_revision": "0"}
        body = {
            "compare": [
                {
                    "key": leader, "target": "CREATE", "result": "EQUAL",
                    "create_revision": str(self._term.fence),
                },
                behind,
            ],
            "success": [self._put(self._key(b"head"), name.encode()), *operations],
            "failure": [{"request_range": {"key": leader}}, {"request_range": {"key": head}}],
        }  # fmt: skip
        left_s = min(PATIENCE_S, self._lead.until - time.monotonic())
        if left_s <= 0:
            self._deposed()
        try:
            return self._await(self._gateway.call("kv/txn", body, left_s))
        except StorageError:
            self._unsure.add(name)
            raise

    def _deposed(self) -> NoReturn:
        """Nothing may be written any more."""
        text = f"{self._place.name}: another server leads by now"
        self._loop.call_soon_threadsafe(self._lead.end, text)
        raise StorageError(text, "deposed")

    # --- reading ------------------------------------------------------------------------------

    def _get(self, *parts: bytes) -> bytes | None:
        answer = self._read({"key": encoded(self._key(*parts))})
        found = first(answer)
        return None if found is None else value_of(found)

    def _below(self, base: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All keys with a prefix, as they were at one moment."""
        low, revision, limit = base, "0", PAGE
        while True:
            ask = {
                "key": encoded(low), "range_end": encoded(_end(base)), "limit": str(limit),
                "revision": revision,
            }  # fmt: skip
            try:
                answer = self._read(ask)
            except StorageError as error:
                if "larger than max" not in str(error) or limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            revision = answer["header"]["revision"] if revision == "0" else revision
            found = answer.get("kvs") or []
            for row in found:
                yield decoded(row["key"]), value_of(row)
            if not answer.get("more"):
                return
            low = decoded(found[-1]["key"]) + b"\0"

    def _read(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        return self._await(self._gateway.call("kv/range", ask, PATIENCE_S))

    def _await(self, call: Coroutine[Any, Any, T]) -> T:
        """From the thread: a call in the loop, to its end, which each of them has a deadline for."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    # --- operations ---------------------------------------------------------------------------

    def _key(self, *parts: bytes) -> bytes:
        return self._place.key(*parts)

    def _operations(self, changes: Changes) -> list[_Operation]:
        keys = ((self._key(b"records", key), value) for key, value in changes.items())
        return [self._delete(k) if v is None else self._put(k, v) for k, v in keys]

    @staticmethod
    def _put(key: bytes, value: bytes) -> _Operation:
        return {"request_put": {"key": encoded(key), "value": encoded(value)}}

    @staticmethod
    def _delete(key: bytes) -> _Operation:
        return {"request_delete_range": {"key": encoded(key)}}


async def check_cluster(gateway: Gateway, place: Place, cluster: str) -> None:
    """Whether a prefix is this cluster's, or nobody's.

    Raises:
        StorageError: another cluster, or another program, has it (SEMANTICS T23).
    """
    ask: dict[str, Any] = {"key": encoded(place.key(b"cluster"))}
    found = first(await gateway.call("kv/range", ask, PATIENCE_S))
    if found is not None:
        there = value_of(found).decode(errors="replace")
        if there != cluster:
            raise StorageError(
                f"{place.name}: this prefix belongs to cluster {there!r}, and this server is of cluster "
                f"{cluster!r}: give it a prefix of its own, or the right --cluster-id",
                "owned",
            )
        return
    base = place.key(b"")
    ask = {"key": encoded(base), "range_end": encoded(_end(base)), "limit": "2", "keys_only": True}
    answer = await gateway.call("kv/range", ask, PATIENCE_S)
    strange = [decoded(row["key"]) for row in answer.get("kvs") or []]
    for key in strange:
        if key != place.key(b"leader"):
            raise StorageError(
                f"{place.name}: there are keys of something else below this prefix ({key!r}): give this "
                "cluster a prefix of its own",
                "owned",
            )


def _batches(changes: Changes) -> Iterator[dict[bytes, bytes | None]]:
    """Parts that fit in a transaction; at least one."""
    batch: dict[bytes, bytes | None] = {}
    size = 0
    for key, value in changes.items():
        more = len(key) + len(value or b"") + 100
        if batch and (len(batch) >= OPERATIONS_MAX or size + more > BYTES_MAX):
            yield batch
            batch, size = {}, 0
        batch[key] = value
        size += more
    yield batch


def _end(prefix: bytes) -> bytes:
    """The first key behind all that begin with a prefix, which ends with a slash."""
    return prefix[:-1] + b"0"
