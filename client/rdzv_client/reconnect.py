"""The time between two connections: when to try, when to complain, when to give up."""

import random

from rdzv_client import backoff
from rdzv_proto.errors import ErrorCode, info
from rdzv_proto.messages import Error

COMPLAIN_S = 5.0
"""One line per this time while the server cannot be reached."""


REDIRECT_S = 1.0
"""A client is sent on at once so often; less than a server that stands by lets it wait (`HOLD_S` there)."""

HELLO_S = 5.0
"""A server that accepts but does not answer a hello (and our proof) within this time is none, or stalled."""

DOUBTFUL_HELLO_S = 1.0
"""The same for a server that has just fallen silent, or a sixth of the lease, whichever is longer. Half of the lease
went by until that was noticed; who waits five seconds more for a leader that is stopped, while its successor takes
over, is lost there (python -m tests.ha)."""


def hello_s(lease_s: float, *, doubtful: bool) -> float:
    """Patience with a hello, in seconds.

    Args:
        lease_s: of the session.
        doubtful: this server has just fallen silent, and there are others.
    """
    return max(DOUBTFUL_HELLO_S, lease_s / 6) if doubtful else HELLO_S


class Reconnect:
    """Plans connection attempts. Pure; times are monotonic seconds.

    Args:
        now: when the client is made; see `begin`.
        rng: source of jitter.
        connect_timeout_s: patience before the first contact.
        reconnect_timeout_s: patience after a contact was lost.
    """

    def __init__(
        self, now: float, rng: random.Random, connect_timeout_s: float, reconnect_timeout_s: float
    ) -> None:
        self._rng = rng
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._failures = 0
        self._met = False
        self._redirected_at = -REDIRECT_S + now
        self.leader = ""
        """Who leads (HOST:PORT), if the last server stands by and said so."""
        self.silent = False
        """The last connection ended because the server did not answer."""
        self.away_since = now
        self.attempt_at: float | None = now
        """When the next attempt is due; None while one is under way, or no more."""
        self.complain_at = now + COMPLAIN_S

    @property
    def patience_s(self) -> float:
        """How long the server may be away."""
        return self._reconnect_timeout_s if self._met else self._connect_timeout_s

    @property
    def give_up_at(self) -> float:
        """When patience ends."""
        return self.away_since + self.patience_s

    @property
    def attempt_s(self) -> float:
        """How long the attempt that is due may take."""
        return backoff.QUICK_CONNECT_S if self._quick else backoff.CONNECT_S

    @property
    def _quick(self) -> bool:
        return self._met and self._failures < len(backoff.QUICK_S)

    def begin(self, now: float) -> None:
        """The first attempt is due, and patience counts from here: a client may be made long before it is used."""
        self.away_since = self.attempt_at = now
        self.complain_at = now + COMPLAIN_S

    def given_up(self, now: float, where: str, last_error: str) -> Error:
        """What to say when patience has ended."""
        contact = "lost contact with" if self._met else "cannot reach"
        text = (
            f"{contact} rdzv-server at {where} for {now - self.away_since:.1f} s (limit "
            f"{self.patience_s:g} s); last error: {last_error}"
        )
        code = ErrorCode.CONNECTION_LOST
        return Error(code=code, message=text, action=info(code).action)

    def met(self) -> None:
        """The server welcomed us."""
        self._met = True
        self._failures = 0

    def broke(self, now: float) -> None:
        """A connection that was welcomed is gone."""
        self.away_since, self._failures = now, 0
        self.complain_at = now + COMPLAIN_S
        self._plan(now)

    def failed(self, now: float, *, unanswered: bool = False) -> None:
        """An attempt came to nothing, or to a server that stands by: then go on at once to the one that it named.
        When that one is gone, servers that stand by let us wait with them; two who send us to each other do not.

        Args:
            unanswered: a hello was said and had no answer. The server may have read it, or do so when it goes on, and
                count our absence from its end (simulator, durable 33767 and 40194).
        """
        if self.leader and now - self._redirected_at >= REDIRECT_S:
            self._redirected_at = self.attempt_at = now
            self._failures = min(self._failures, 1)
            return
        self._failures += 1
        self._plan(now, backoff.BACK_CAP_S if unanswered and self._met else backoff.CAP_S)

    def hold_off(self, now: float, pause_s: float) -> None:
        """The server asked for a pause; half of it again is jitter."""
        if self.attempt_at is not None:
            self.attempt_at = max(self.attempt_at, now + pause_s * self._rng.uniform(1.0, 1.5))

    def complained(self, now: float) -> None:
        """A line about the absence was written."""
        self.complain_at = now + COMPLAIN_S

    def _plan(self, now: float, cap_s: float = backoff.CAP_S) -> None:
        if self._quick:
            self.attempt_at = max(now, self.away_since + backoff.QUICK_S[self._failures])
        else:
            self.attempt_at = now + backoff.delay_s(max(1, self._failures), self._rng, cap_s)
