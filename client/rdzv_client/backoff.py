"""When to try the server again. Pure: attempt and random source in, seconds out.

A connection that just broke is retried at once and quickly, on fresh sockets, because the server
counts a node as lost after its reconnect grace (1 s): one lost SYN must not cost a restart. After
that, and before the first contact, full jitter: uniform between 0 and an exponentially growing
bound. With it a thousand clients of a restarted server do not come in one wave.
"""

import random

QUICK_S = (0.0, 0.1, 0.3, 0.6)
"""Seconds after the break at which the quick attempts start."""

QUICK_CONNECT_S = 0.3
"""Patience of one quick attempt: shorter than the kernel's first SYN retry at 1 s."""

CONNECT_S = 3.0
"""Patience of any other attempt: two SYN retries."""

HANDSHAKE_S = 15.0
"""Patience of a TLS handshake, once a connection stands, in a quick attempt too. The server is there then, and
makes a signature for each of thousands of clients that all came at once. Whoever gives up and begins
anew goes to the end of the line and has it make another one: with 3 s, 3,000 clients on a busy machine never
got in (herd bench)."""

BASE_S = 0.05
CAP_S = 2.0
"""Largest bound. A world must be complete within 3 s of the server's appearance."""

BACK_CAP_S = 0.6
"""The same after a hello that may have been read: as for the last quick attempt, the server's grace may be running."""


def delay_s(attempt: int, rng: random.Random, cap_s: float = CAP_S) -> float:
    """Pause before an attempt.

    Args:
        attempt: failures so far in a row, from 1.
        rng: source of the jitter.
        cap_s: largest bound.

    Returns:
        Seconds, uniform between 0 and min(cap_s, BASE_S * 2 ** attempt).
    """
    return rng.uniform(0.0, min(cap_s, BASE_S * 2.0 ** min(attempt, 30)))
