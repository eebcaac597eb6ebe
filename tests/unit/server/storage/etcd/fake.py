"""The part of etcd that the store needs, in memory: and answers that are lost, and writes that arrive late."""

import asyncio
import base64
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rdzv_server.storage.base import StorageError


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass
class Row:
    value: bytes
    created: int
    lease: str = ""


class FakeGateway:
    """In place of `Gateway`.

    Attributes:
        rows: what is stored.
        faults: what happens to the next transactions: "" done, "lost" done and the answer lost, "refused" not done,
            "late" not done yet (see `arrive`).
        renewals: of leases, so far.
        written: names of keys that transactions put or deleted, one set each.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, Row] = {}
        self.revision = 1
        self.faults: deque[str] = deque()
        self.late: list[Mapping[str, Any]] = []
        self.transactions = 0
        self.operations_most = self.bytes_most = 0
        self.leases: dict[str, float] = {}
        self._lease_ids = itertools.count(100)
        self.elected = asyncio.Event()
        self.renewals = 0

    async def call(self, path: str, body: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        assert deadline_s > 0
        match path:
            case "kv/range":
                return self._range(body)
            case "kv/txn":
                return self._transact(body)
            case "lease/grant":
                lease = str(next(self._lease_ids))
                self.leases[lease] = float(body["TTL"])
                return {"ID": lease, "TTL": body["TTL"]}
            case "lease/revoke":
                self.expire(body["ID"])
                return {}
            case "lease/keepalive":
                self.renewals += 1
                ttl = self.leases.get(body["ID"])
                return {
                    "result": {"ID": body["ID"]} | ({} if ttl is None else {"TTL": str(int(ttl))})
                }
            case "lease/timetolive":
                ttl = self.leases.get(body["ID"])
                return {"TTL": "-1"} if ttl is None else {"TTL": str(int(ttl)), "grantedTTL": "3"}
            case _:
                raise AssertionError(f"no such call: {path}")

    async def close(self) -> None:
        pass

    def expire(self, lease: str) -> None:
        """The lease is over, and its keys are gone."""
        self.leases.pop(lease, None)
        for key in [key for key, row in self.rows.items() if row.lease == lease]:
            del self.rows[key]

    def arrive(self) -> list[bool]:
        """What was late comes now; whether it took effect."""
        late, self.late = self.late, []
        return [bool(self._apply(body).get("succeeded")) for body in late]

    def records(self, prefix: bytes = b"/p/records/") -> dict[bytes, bytes]:
        """Without the one that holds their version."""
        names = (key for key in self.rows if key.startswith(prefix) and not key.endswith(b"schema"))
        return {key[len(prefix) :]: self.rows[key].value for key in names}

    # --- inside -------------------------------------------------------------------------------

    def _range(self, body: Mapping[str, Any]) -> dict[str, Any]:
        low = _bytes(body["key"])
        end = _bytes(body["range_end"]) if "range_end" in body else low + b"\0"
        found = sorted(key for key in self.rows if low <= key < end)
        limit = int(body.get("limit", 0)) or len(found)
        kvs = []
        for key in found[:limit]:
            row = self.rows[key]
            told = {"key": _text(key), "create_revision": str(row.created)}
            if row.lease:
                told["lease"] = row.lease
            if row.value and not body.get("keys_only"):
                told["value"] = _text(row.value)
            kvs.append(told)
        answer: dict[str, Any] = {"header": {"revision": str(self.revision)}}
        return (
            answer | ({"kvs": kvs} if kvs else {}) | ({"more": True} if len(found) > limit else {})
        )

    def _transact(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.transactions += 1
        fault = self.faults.popleft() if self.faults else ""
        if fault == "late":
            self.late.append(body)
        if fault in ("late", "refused"):
            raise StorageError("no answer", "io")
        answer = self._apply(body)
        if fault == "lost":
            raise StorageError("no answer", "io")
        return answer

    def _apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        good = all(self._compare(each) for each in body["compare"])
        if good:
            self.revision += 1
        operations = body["success" if good else "failure"]
        size = sum(len(str(operation)) * 3 // 4 for operation in operations)
        self.operations_most = max(self.operations_most, len(operations))
        self.bytes_most = max(self.bytes_most, size)
        responses = [self._operate(operation) for operation in operations]
        return {"responses": responses} | ({"succeeded": True} if good else {})

    def _compare(self, compare: Mapping[str, Any]) -> bool:
        row = self.rows.get(_bytes(compare["key"]))
        if compare["target"] == "CREATE":
            return (0 if row is None else row.created) == int(compare["create_revision"])
        return row is not None and row.value == _bytes(compare["value"])

    def _operate(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        ((kind, ask),) = operation.items()
        key = _bytes(ask["key"])
        if kind == "request_range":
            return {"response_range": self._range(ask)}
        if kind == "request_put":
            old = self.rows.get(key)
            created = self.revision if old is None else old.created
            self.rows[key] = Row(_bytes(ask["value"]), created, ask.get("lease", ""))
            return {"response_put": {}}
        end = _bytes(ask["range_end"]) if "range_end" in ask else key + b"\0"
        for each in [each for each in self.rows if key <= each < end]:
            del self.rows[each]
        return {"response_delete_range": {}}
