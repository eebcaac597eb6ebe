"""The versions of the protocol, each a table: which messages it has, and how those look that differ in it.

Core and client session know one set of messages, those of `messages.py`, as the newest version has them. What
an older version has in another form is brought up to these when it comes in, and down when it goes out, so
that nothing behind the codec knows of versions. The rules:

- A version only grows (see `messages.py`). Whatever cannot be said that way needs the next one: a field that
  is gone, another meaning, a message that a side must not be sent before it knows it.
- The messages of the opening have the same form in all versions: they are said before both sides have agreed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rdzv_proto import PROTOCOL_VERSION
from rdzv_proto.messages import (
    PUSHES,
    REPLIES,
    REQUESTS,
    Authenticate,
    Error,
    Goodbye,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    Message,
    Welcome,
)

OPENING: tuple[type[Message], ...] = (
    HelloNode,
    HelloWorker,
    HelloAdmin,
    Authenticate,
    Welcome,
    Error,
    Goodbye,
)
"""What may be said before both sides have agreed on a version."""


@dataclass(frozen=True)
class Form:
    """How a message looks in a version where it is not as in the table of messages."""

    wire: type[Message]
    """Under the same operation."""
    up: Callable[[Any], Message]
    """From that to the message of the table. It is given what was decoded, and gives what is within the table's
    bounds."""
    down: Callable[[Any], Message]
    """The other way."""


@dataclass(frozen=True)
class Version:
    """One version of the protocol.

    Raises:
        ValueError: a side would have to say what this version cannot.
    """

    number: int
    requests: Mapping[str, type[Message]]
    """By operation, as are the others."""
    replies: Mapping[str, type[Message]]
    pushes: Mapping[str, type[Message]]
    forms: Mapping[type[Message], Form] = field(default_factory=dict)
    """Of those that are different in this version."""

    def __post_init__(self) -> None:
        messages = self.messages
        for kind in OPENING:
            if messages.get(kind.op) is not kind or kind in self.forms:
                raise ValueError(f"version {self.number}: {kind.op} must be as in all versions")
        for op, kind in self.requests.items():
            answer = getattr(kind, "answer", None)
            if answer not in self.replies:
                raise ValueError(f"version {self.number} has {op} and not its answer {answer}")
        for kind, form in self.forms.items():
            if messages.get(kind.op) is not kind or form.wire.op != kind.op:
                raise ValueError(f"version {self.number}: {kind.op} has a form and is not there")

    @property
    def messages(self) -> dict[str, type[Message]]:
        """All of them by operation, as in the table of messages."""
        return {**self.requests, **self.replies, **self.pushes}

    def wire(self, kind: type[Message]) -> type[Message]:
        """The type of a message as it is sent."""
        form = self.forms.get(kind)
        return kind if form is None else form.wire


V1 = Version(1, REQUESTS, REPLIES, PUSHES)

NEWEST = V1
assert NEWEST.number == PROTOCOL_VERSION
