"""etcd's own JSON gateway (`/v3/…`) through aiohttp: calls, several members, sign-in, and what errors mean.

What the gateway does that its documentation does not say loudly: 64-bit numbers are strings; fields that are
false, 0 or empty are left out; errors come as HTTP 4xx or 5xx with a JSON body that has a gRPC code.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from rdzv_proto.text import visible
from rdzv_server.storage.base import Cause, StorageError
from rdzv_server.storage.etcd.place import Credentials, Place

ATTEMPT_S = 1.5
"""For one member, at most: longer than etcd takes to elect a leader of its own (1 s)."""

ATTEMPTS_IN_LEASE = 4
"""So many members can be asked before the lease runs out, although each says nothing."""

PAUSE_S = 0.1
"""After all members failed, before they are asked again."""

TEXT_CHARS_MAX = 300
"""Of an error's text: it goes on one line of the log."""

_UNAVAILABLE = frozenset((4, 14))
"""gRPC: deadline exceeded, unavailable. Another member may know more."""

_UNAUTHENTICATED = 16
_PASSING = ("leader changed", "no leader", "request timed out", "too many requests")

Body = Mapping[str, Any]


def encoded(data: bytes) -> str:
    """Bytes as the gateway wants them."""
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes:
    """Bytes as the gateway tells them."""
    return base64.b64decode(text)


def first(answer: Body) -> dict[str, Any] | None:
    """The first row of what a range holds; None if there is none."""
    rows = answer.get("kvs") or []
    return rows[0] if rows else None


def value_of(row: Body) -> bytes:
    """What a row holds; an empty value is left out of it."""
    return decoded(row.get("value", ""))


class RefusedError(Exception):
    """etcd understood, and said no.

    Args:
        code: of gRPC.
        text: etcd's own.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Gateway:
    """All members of one etcd cluster. Used from one event loop.

    Attributes:
        elected: set when the members have a new leader of their own.

    Args:
        place: where they are.
        credentials: how to get in.
        lease_s: of the leader.

    Raises:
        StorageError: a certificate cannot be used.
    """

    def __init__(self, place: Place, credentials: Credentials, lease_s: float) -> None:
        self._credentials = credentials
        scheme = "https" if credentials.tls else "http"
        self._urls = [f"{scheme}://{endpoint}" for endpoint in place.endpoints]
        self._place = place
        self._at = 0
        """The member that answered last."""
        self._token = ""
        self.elected = asyncio.Event()
        self._raft_term = 0
        """Of etcd's own leader, the newest that was told."""
        self._attempt_s = min(ATTEMPT_S, lease_s / ATTEMPTS_IN_LEASE)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=credentials.context() or False),
            trust_env=False,
        )

    async def close(self) -> None:
        """Let go of all connections."""
        await self._session.close()

    async def call(self, path: str, body: Body, deadline_s: float) -> dict[str, Any]:
        """One call, at whichever member answers. It may take effect although it fails, and more than once:
        what it asks for must bear that.

        Args:
            path: below /v3/.
            body: of the request.
            deadline_s: for all attempts together.

        Raises:
            StorageError: no member answered in time, or etcd refused.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        failure, tried = "no attempt was made", 0
        while (left_s := until - loop.time()) > 0:
            if tried and tried % len(self._urls) == 0:
                await pause(PAUSE_S)
            tried += 1
            try:
                return await self._ask(
                    self._urls[self._at], path, body, min(left_s, self._attempt_s)
                )
            except RefusedError as error:
                if not _passing(error):
                    raise _meaning(self._place, error) from None
                failure = str(error)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                failure = self._words(error)
            self._at = (self._at + 1) % len(self._urls)
        failure = visible(failure, TEXT_CHARS_MAX)
        raise StorageError(
            f"{self._place.name}: no answer from etcd within {deadline_s:.1f} s; last: {failure}",
            "io",
        )

    async def _ask(self, url: str, path: str, body: Body, timeout_s: float) -> dict[str, Any]:
        if self._credentials.user and not self._token:
            await self._sign_in(url, timeout_s)
        try:
            return await self._post(url, path, body, timeout_s)
        except RefusedError as error:
            if error.code != _UNAUTHENTICATED or not self._credentials.user:
                raise
        self._token = ""  # it has expired, or etcd's roles have changed
        await self._sign_in(url, timeout_s)
        return await self._post(url, path, body, timeout_s)

    async def _sign_in(self, url: str, timeout_s: float) -> None:
        body = {"name": self._credentials.user, "password": self._credentials.password()}
        answer = await self._post(url, "auth/authenticate", body, timeout_s)
        self._token = str(answer.get("token", ""))

    async def _post(self, url: str, path: str, body: Body, timeout_s: float) -> dict[str, Any]:
        headers = {"Authorization": self._token} if self._token else {}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.post(
            f"{url}/v3/{path}", json=body, headers=headers, timeout=timeout
        ) as response:
            raw = await response.read()
            answer: Any = None
            with contextlib.suppress(ValueError):
                answer = json.loads(raw)
            if response.status == 404:
                raise RefusedError(0, "it has no JSON gateway (etcd's --enable-grpc-gateway)")
            if not isinstance(answer, dict):
                raise RefusedError(14, f"HTTP {response.status} and no JSON: is it etcd?")
            if response.status != 200:
                text = answer.get("message") or answer.get("error") or f"HTTP {response.status}"
                raise RefusedError(int(answer.get("code", 0)), str(text))
            self._note_term(answer)
            return answer

    def _note_term(self, answer: dict[str, Any]) -> None:
        header = answer.get("header") or answer.get("result", {}).get("header") or {}
        term = int(header.get("raft_term", 0))
        if 0 < self._raft_term < term:
            self.elected.set()
        self._raft_term = max(self._raft_term, term)

    def _words(self, error: BaseException) -> str:
        if isinstance(error, asyncio.TimeoutError):
            return f"no answer within {self._attempt_s:g} s"
        return str(error) or type(error).__name__


async def pause(seconds: float) -> None:
    """Wait: another system is asked again, and has nothing that could be waited on."""
    await asyncio.sleep(seconds)  # noqa: TID251


def _passing(error: RefusedError) -> bool:
    return error.code in _UNAVAILABLE or any(text in str(error) for text in _PASSING)


def _meaning(place: Place, error: RefusedError) -> StorageError:
    """What etcd's refusal means for the operator."""
    text, cause = visible(str(error), TEXT_CHARS_MAX), _cause(error)
    hint = {
        "full": " (compact and defragment it, raise --quota-backend-bytes, then `etcdctl alarm disarm`; "
        "--auto-compaction-retention=5m prevents it)",
        "access": " (--etcd-user, --etcd-password-file, --etcd-cert)",
    }.get(cause, "")
    return StorageError(f"{place.name}: etcd refuses: {text}{hint}", cause)


def _cause(error: RefusedError) -> Cause:
    text = str(error)
    if "space exceeded" in text:
        return "full"
    if (
        error.code in (7, _UNAUTHENTICATED)
        or "authentication failed" in text
        or "user name" in text
    ):
        return "access"
    return "unsupported" if "gateway" in text else "io"
