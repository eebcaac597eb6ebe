"""SIGTERM while an agent waits in its first rendezvous."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from rdzv_client.torch.signals import Terminated, termination_raises


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def terminate_within() -> None:
    with termination_raises():
        signal.raise_signal(signal.SIGTERM)


def test_sigterm_becomes_an_exception() -> None:
    with pytest.raises(Terminated):
        terminate_within()


def test_it_is_not_caught_by_accident() -> None:
    assert not issubclass(Terminated, Exception)


def test_afterwards_the_default_is_back_with_and_without_a_signal() -> None:
    with termination_raises():
        assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(Terminated):
        terminate_within()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_program_stays_in_place() -> None:
    got: list[int] = []

    def own(number: int, frame: FrameType | None) -> None:
        got.append(number)

    signal.signal(signal.SIGTERM, own)
    terminate_within()
    assert got == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    terminate_within()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_in_another_thread_nothing_is_installed() -> None:
    seen: list[object] = []

    def look() -> None:
        with termination_raises():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_the_process_dies_of_the_very_signal() -> None:
    code = (
        "import os, signal\n"
        "from rdzv_client.torch.signals import Terminated, termination_raises\n"
        "try:\n"
        "    with termination_raises():\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()\n"
        "except Terminated as terminated:\n"
        "    print('left', flush=True)\n"
        "    terminated.die()\n"
        "    signal.pause()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "left\n"
    assert run.returncode == -signal.SIGTERM
    assert os.WTERMSIG(signal.SIGTERM) == signal.SIGTERM
