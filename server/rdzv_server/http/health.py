"""Whether the server serves, and if not, why: what `/readyz` and metrics say alike."""

from rdzv_proto.text import visible

REASON_CHARS_MAX = 256
"""One line that people read in a probe's event."""

STATES = ("starting", "serving", "read_only", "standby", "shutting_down")
"""All that `state` can be."""


class Health:
    """Set by whoever knows; read by the HTTP side. Starts as `starting`.

    The reasons are shown to anybody who can reach the HTTP port: no names of runs, keys or secrets.
    """

    def __init__(self) -> None:
        self.started = False
        """It listens, and what was stored has been read."""
        self.stopping = False
        self.read_only = ""
        """Why nothing can be stored now; empty: it can."""
        self.standby = ""
        """Who leads, where another server does; empty: this one."""

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.stopping:
            return "shutting_down"
        if not self.started:
            return "starting"
        if self.standby:
            return "standby"
        return "read_only" if self.read_only else "serving"

    @property
    def reason(self) -> str:
        """Why it does not serve, in one line; empty if it does."""
        said = {
            "starting": "starting: what was stored is being read",
            "serving": "",
            "read_only": f"read-only: {self.read_only}",
            "standby": f"standby: {self.standby} leads",
            "shutting_down": "shutting down",
        }[self.state]
        return visible(said, REASON_CHARS_MAX)
