"""What a training process inherits from its agent: where the server is and which generation it is in.

The agent puts these variables into the environment of its workers; the token itself is in a file that
only its user can read, since environments can be looked at by others.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from rdzv_client import endpoint, names
from rdzv_client.endpoint import Endpoint
from rdzv_client.errors import GenerationEnded
from rdzv_proto.messages import Fence, HelloWorker

RUN, FENCE, NODE_ID = "RDZV_RUN", "RDZV_FENCE", "RDZV_WORKER_NODE"
TOKEN_FILE = "RDZV_WORKER_TOKEN_FILE"
LEASE = "RDZV_LEASE_MS"


@dataclass(frozen=True)
class WorkerEnvironment:
    """The inherited settings."""

    endpoints: list[Endpoint]
    run: str
    node_id: str
    fence: Fence
    rank: int
    world_size: int
    lease_ms: int
    token: bytes

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> "WorkerEnvironment":
        """Read it from the environment.

        Raises:
            ValueError: a variable is missing or wrong; it is named, with how to get it set.
            GenerationEnded: the agent has gone on to a later generation.
        """
        environ = os.environ if environ is None else environ

        def need(name: str) -> str:
            value = environ.get(name, "")
            if not value:
                raise ValueError(
                    f"{name} is not set: Client.from_env() works in training processes that "
                    "torchrun started with --rdzv-backend=rdzv"
                )
            return value

        fence = need(FENCE)
        token = _read_token(need(TOKEN_FILE), fence)
        epoch, _, generation = fence.partition(".")
        try:
            return cls(
                endpoints=endpoint.parse(need(endpoint.VARIABLE)),
                run=need(RUN),
                node_id=need(NODE_ID),
                fence=Fence(int(epoch), int(generation)),
                rank=int(need("RANK")),
                world_size=int(need("WORLD_SIZE")),
                lease_ms=int(environ.get(LEASE, "15000")),
                token=token,
            )
        except ValueError as error:
            raise ValueError(f"the environment of this worker is broken: {error}") from None

    def hello(self) -> HelloWorker:
        """The first frame."""
        return HelloWorker(
            run=self.run,
            node_id=self.node_id,
            fence=self.fence,
            rank=self.rank,
            worker_token=self.token,
            incarnation=secrets.token_bytes(16),
            lease_ms=self.lease_ms,
            client=names.CLIENT,
        )


def token_text(fence: Fence, token: bytes) -> bytes:
    """The content of the token file: which generation, and the token."""
    return f"{fence} {token.hex()}\n".encode()


def _read_token(path: str, fence: str) -> bytes:
    try:
        with open(path) as file:
            there, _, token = file.read().strip().partition(" ")
    except OSError as error:
        raise ValueError(
            f"cannot read the worker token in {path} ({error.strerror}): is the agent that started "
            "this process still running?"
        ) from None
    if there != fence:
        raise GenerationEnded(
            f"this worker belongs to generation {fence}, its agent is at {there or 'none'}"
        )
    return bytes.fromhex(token)
