"""Pretended hosts: network (and UTS) namespaces joined by virtual links. Needs root and iproute2.

Each host has a leg to a bridge in a namespace of its own, so nothing of the machine's own network is
touched. A link can be taken down (no FIN reaches the other side) and up again.
"""

import subprocess
from types import TracebackType

_COUNTER = iter(range(1, 1000))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Net:
    """A switch in a namespace of its own, and hosts on it.

    Args:
        tag: makes the names of this test unique.
        subnet: first three numbers of the addresses.
    """

    def __init__(self, tag: str, subnet: str = "10.77.1") -> None:
        self._tag = tag[:6]
        self._switch = f"rz{self._tag}sw"
        self._subnet = subnet
        self._spaces: list[str] = []
        self._add_space(self._switch)
        self._in(self._switch, "link", "add", "br0", "type", "bridge")
        self._in(self._switch, "link", "set", "br0", "up")

    def host(self, number: int) -> "Host":
        """A new host with address `subnet.number` on `eth0`."""
        name = f"rz{self._tag}h{number}"
        self._add_space(name)
        leg = self.attach(name, number, "eth0")
        return Host(self, name, f"{self._subnet}.{number}", leg)

    def attach(self, space: str, number: int, device: str) -> str:
        """Give a host (of another switch, too) a link to this one; returns the switch's end."""
        leg = f"v{next(_COUNTER)}{self._tag}"[:15]
        words = ("type", "veth", "peer", "name", device, "netns", space)
        self._in(self._switch, "link", "add", leg, *words)
        self._in(self._switch, "link", "set", leg, "master", "br0")
        self._in(self._switch, "link", "set", leg, "up")
        self._in(space, "addr", "add", f"{self._subnet}.{number}/24", "dev", device)
        self._in(space, "link", "set", device, "up")
        return leg

    def cut(self, leg: str) -> None:
        self._in(self._switch, "link", "set", leg, "down")

    def heal(self, leg: str) -> None:
        self._in(self._switch, "link", "set", leg, "up")

    def _add_space(self, name: str) -> None:
        _ip("netns", "add", name)
        self._spaces.append(name)
        self._in(name, "link", "set", "lo", "up")

    def _in(self, space: str, *words: str) -> None:
        _ip("-n", space, *words)

    def __enter__(self) -> "Net":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


class Host:
    """A pretended machine."""

    def __init__(self, net: Net, space: str, address: str, leg: str) -> None:
        self._net, self.space, self.address, self._leg = net, space, address, leg

    def prefix(self, hostname: str | None = None) -> list[str]:
        """Words before a command that shall run there, under a host name of its own if given."""
        words = ["ip", "netns", "exec", self.space]
        if hostname is not None:
            rename = 'hostname "$0" && exec "$@"'
            words += ["unshare", "--uts", "sh", "-c", rename, hostname]
        return words

    def run(self, *command: str) -> None:
        """Run a command there."""
        subprocess.run([*self.prefix(), *command], check=True, capture_output=True)

    def cut(self) -> None:
        """Nothing gets in or out, and nobody is told."""
        self._net.cut(self._leg)

    def heal(self) -> None:
        """The link is back."""
        self._net.heal(self._leg)
