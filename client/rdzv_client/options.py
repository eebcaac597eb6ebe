"""What a node wants, checked once, and turned into messages. Shared by both client classes."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from rdzv_client import names
from rdzv_proto import limits
from rdzv_proto.messages import Address, Fence, HelloNode, Join, Policy


@dataclass(frozen=True)
class NodeOptions:
    """How a node takes part in a run. Durations in seconds; invalid values raise ValueError."""

    run: str
    min_nodes: int = 1
    max_nodes: int | None = None
    """None: as `min_nodes`."""
    node_id: str = ""
    """Unique within the run. Empty: made up for this process. A node id given here opts into
    replacement: a new process with the same id takes the old one's place."""
    name: str = ""
    """What people call the node; empty: its host name."""
    rank: int | None = None
    """Wished order among the nodes."""
    node_unit: int = 1
    """World sizes are multiples of this."""
    worker_store: str = "rank0"
    expected_nodes: tuple[str, ...] = ()
    """Names or ids: the first last call ends early when all of them are in."""
    join_timeout_s: float = 600.0
    last_call_timeout_s: float = 30.0
    below_min: str = "stop"
    """`stop` or `wait`: what the others do after an orderly failure that leaves too few nodes."""
    lease_s: float = 15.0
    """How long this node may be silent before it counts as lost."""
    connect_timeout_s: float = 300.0
    """How long to try before the server was ever reached."""
    reconnect_timeout_s: float = 300.0
    """How long to try after contact was lost."""
    owner: str = ""
    """Told apart for the run `none` only, torchrun's default id."""
    incarnation: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def __post_init__(self) -> None:
        names.checked(self.run, "run id")
        names.checked(self.worker_store, "worker_store")
        if self.owner:
            names.checked(self.owner, "owner")
        name = names.checked(self.name or names.host_name(), "node name")
        object.__setattr__(self, "name", name)
        node_id = self.node_id or os.environ.get("RDZV_NODE_ID") or names.unique_node_id(name)
        object.__setattr__(self, "node_id", names.checked(node_id, "node id"))
        if self.max_nodes is None:
            object.__setattr__(self, "max_nodes", self.min_nodes)
        self._check_numbers()

    @property
    def most_nodes(self) -> int:
        """`max_nodes`, never None."""
        return self.min_nodes if self.max_nodes is None else self.max_nodes

    def hello(self) -> HelloNode:
        """The first frame."""
        return HelloNode(
            run=self.run,
            node_id=self.node_id,
            name=self.name,
            incarnation=self.incarnation,
            lease_ms=_ms(self.lease_s),
            client=names.CLIENT,
        )

    def join(self, last: Fence | None, address: Address, timeout_s: float | None = None) -> Join:
        """A join.

        Args:
            last: the last generation this node was in.
            address: what the others are told when this node gets group rank 0.
            timeout_s: instead of `join_timeout_s`.
        """
        timeout_s = self.join_timeout_s if timeout_s is None else timeout_s
        return Join(
            policy=Policy(
                min_nodes=self.min_nodes,
                max_nodes=self.most_nodes,
                node_unit=self.node_unit,
                worker_store=self.worker_store,
                owner=self.owner,
                join_timeout_ms=_ms(timeout_s),
                last_call_timeout_ms=_ms(self.last_call_timeout_s),
                below_min="wait" if self.below_min == "wait" else "stop",
            ),
            last=last,
            rank_hint=self.rank,
            address=address,
            expected_nodes=list(self.expected_nodes),
        )

    def _check_numbers(self) -> None:
        if not 1 <= self.min_nodes <= self.most_nodes <= limits.MEMBERS_PER_RUN_MAX:
            raise ValueError(
                f"min_nodes and max_nodes must be 1 <= {self.min_nodes} <= {self.most_nodes} <= "
                f"{limits.MEMBERS_PER_RUN_MAX}"
            )
        if not 1 <= self.node_unit <= self.most_nodes:
            raise ValueError(f"node_unit must be from 1 to max_nodes, not {self.node_unit}")
        if self.rank is not None and not 0 <= self.rank <= limits.GENERATION_MAX:
            raise ValueError(f"rank must be from 0 to {limits.GENERATION_MAX}, not {self.rank}")
        if self.below_min not in ("stop", "wait"):
            raise ValueError(f"below_min must be 'stop' or 'wait', not {self.below_min!r}")
        if len(self.expected_nodes) > limits.EXPECTED_NODES_MAX:
            raise ValueError(f"expected_nodes has more than {limits.EXPECTED_NODES_MAX} names")
        _check_names(self.expected_nodes)
        for name in ("join_timeout_s", "last_call_timeout_s", "connect_timeout_s",
                     "reconnect_timeout_s"):  # fmt: skip
            if not 0 <= getattr(self, name) <= limits.DURATION_MS_MAX / 1000:
                raise ValueError(f"{name} must be from 0 to ten years, not {getattr(self, name)!r}")
        if not 0 < self.lease_s <= limits.DURATION_MS_MAX / 1000:
            raise ValueError(f"lease_s must be above 0, to ten years, not {self.lease_s!r}")


def _check_names(expected: Sequence[str]) -> None:
    for name in expected:
        names.checked(name, "a name in expected_nodes")


def _ms(duration_s: float) -> int:
    """For the wire; a patience below 0 is none."""
    return min(max(0, round(duration_s * 1000)), limits.DURATION_MS_MAX)
