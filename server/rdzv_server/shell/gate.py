"""Who may come in: challenge and proof of one connection, before the core hears its hello.

A hello is held here until the client has proved that it knows a token. A wrong proof is answered late,
and the later the more of them came from the same address of late, so that nobody can try many; a right
one is never delayed, whoever else shares its address (T19).
"""

import random
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from rdzv_proto import auth
from rdzv_proto.auth import Grant, Scope, Transcript
from rdzv_proto.messages import Authenticate, HelloAdmin, HelloNode, HelloWorker
from rdzv_server.shell.tokens import TokenBook

Hello = HelloNode | HelloWorker | HelloAdmin

DELAY_S = (0.1, 0.3)
"""Before a wrong proof is answered: hides how long the check took."""

DELAY_S_MAX = 3.0
"""Below the time for a hello, so that an answer still comes; a rate of a few tries a second."""

FORGOTTEN_S = 10.0
"""Wrong proofs of an address count for so long."""

ADDRESSES_MAX = 1_024
"""Addresses whose wrong proofs are counted; the ones that tried longest ago make way."""


class Passed(NamedTuple):
    """Somebody proved who he is."""

    hello: Hello
    grant: Grant
    proof: bytes
    """That the server knows the token as well."""


@dataclass(frozen=True)
class Challenge:
    """A hello that waits for its proof. Good for one try."""

    hello: Hello
    body: bytes
    """Of the hello's frame, as it came."""
    nonce: bytes


class Delays:
    """How late refusals are.

    Args:
        rng: source of jitter.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By address: time of the last refusal, and how many came in a row."""

    def next_s(self, host: str, now: float) -> float:
        """Of the next refusal of an address; counts one."""
        last, count = self._failures.pop(host, (now, 0))
        if now - last > FORGOTTEN_S:
            count = 0
        self._failures[host] = now, count + 1
        while len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        return min(self._rng.uniform(*DELAY_S) * (1 + count / 8), DELAY_S_MAX)


class Gate:
    """Challenges and proofs.

    Args:
        tokens: in force.
    """

    def __init__(self, tokens: TokenBook) -> None:
        self._tokens = tokens

    def challenge(self, hello: Hello, body: bytes) -> Challenge:
        """Ask the sender of a hello for a proof."""
        return Challenge(hello, body, secrets.token_bytes(auth.NONCE_BYTES))

    def check(self, asked: Challenge, answer: Authenticate, certificate: bytes) -> Passed | None:
        """Whether the answer is right.

        Args:
            asked: what was asked; must not be used again.
            answer: what came.
            certificate: digest of the server's own on this connection; empty without TLS.
        """
        grant = Grant(Scope(answer.scope), answer.run)
        secret, known = self._tokens.secret(answer.key.hex(), grant)
        transcript = Transcript(asked.body, asked.nonce, answer.nonce, grant, certificate)
        if auth.same(transcript.client_proof(secret), answer.proof) and known:
            return Passed(asked.hello, grant, transcript.server_proof(secret))
        return None
