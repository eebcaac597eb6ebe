"""One request and its reply, for a thread that waits: beneath the calls that block, and the admin's."""

import threading
from typing import TypeVar

from rdzv_client.engine import Engine
from rdzv_client.operations import expect, unanswered
from rdzv_proto.messages import AnyReply, AnyRequest, Message

R = TypeVar("R", bound=Message)


class Waiter:
    """Holds one thread until its reply is there.

    A bare lock: waking through an Event costs a second lock and often a second switch of threads.
    Waiting can be interrupted by signals.
    """

    __slots__ = ("_gate", "reply")

    def __init__(self) -> None:
        self.reply: AnyReply | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def take(self, reply: AnyReply) -> None:
        """The reply is there. Called once, by whichever thread has it."""
        self.reply = reply
        self._gate.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for it; False if it did not come in time. None waits for ever."""
        return self._gate.acquire(
            timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        )


class Calls:
    """Sends requests through an engine and blocks for their replies."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def ask(self, message: AnyRequest, kind: type[R], timeout_s: float | None) -> R:
        """One request and its reply.

        Args:
            message: the request.
            kind: the reply it must get.
            timeout_s: patience; None waits as long as the server lets it wait.

        Raises:
            RdzvError: the server refused, or no answer came in time.
        """
        waiter = Waiter()
        request_id = self.engine.submit(message, waiter.take)
        try:
            answered = waiter.wait(timeout_s)
        except BaseException:
            self.engine.forget(request_id)
            raise
        if not answered or waiter.reply is None:
            self.engine.forget(request_id)
            raise unanswered(message, self.engine.session, timeout_s)
        return expect(waiter.reply, kind)
