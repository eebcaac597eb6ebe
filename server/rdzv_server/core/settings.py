"""What an operator may set on the server's core. Units are last in each name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations in seconds. Invalid combinations raise ValueError."""

    reconnect_grace_s: float = 1.0
    """How long a node whose connection closed may take to come back before it counts as lost.
    One lost SYN is retried after a second; the client itself tries at 0, 0.1, 0.3 and 0.6 s."""
    scale_up_delay_s: float = 1.0
    """Newcomers to a live generation are announced after this long without a further one.
    Doubles with each scale-up within ten minutes."""
    scale_up_wait_s_max: float = 5.0
    """The first newcomer waits at most this long for the announcement (or one delay, if longer)."""
    run_keep_s: float = 600.0
    """How long an ended run stays in the status, and a closed one refuses joins."""
    hello_timeout_s: float = 5.0
    """From the first byte to a good hello. A scan or a dead peer must not hold a descriptor."""
    admin_idle_s: float = 60.0
    """An admin connection without requests is closed after this long."""
    guarded: bool = False
    """A token is in force. TCPStore clients cannot have one, so only addresses of the generation's nodes
    may connect to its workers' store."""
    state: str = "memory"
    """Where state is kept, for people."""
    leader: str = ""
    """Own address, where servers of a cluster take turns; for people too."""
    lease_s_min: float = 0.2
    """Below this a lease is shorter than two ticks and an ordinary hiccup costs a restart."""
    lease_s_max: float = 3600.0
    """A silent node holds its world for at most an hour."""

    def __post_init__(self) -> None:
        for name in (
            "reconnect_grace_s", "scale_up_delay_s", "scale_up_wait_s_max", "run_keep_s",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("hello_timeout_s", "admin_idle_s", "lease_s_min"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.lease_s_max < self.lease_s_min:
            raise ValueError("lease_s_max is below lease_s_min")


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes this server start unlike any other. Handed in: the core draws no random bits."""

    version: str
    """Software version, for people."""
    instance: str
    """Random hex; tells two servers at one address apart."""
    epoch: int
    """Larger than that of every earlier start that could not resume its state."""
    key: bytes
    """32 secret random bytes; session and worker tokens are derived from it."""
