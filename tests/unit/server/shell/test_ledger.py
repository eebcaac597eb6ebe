"""Effects wait for the commit that they rest on, in order, and nothing is told that is not safe (S26, S28)."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping

import pytest

from rdzv_server.core.events import Effect, Persist, Report
from rdzv_server.shell import ledger as module
from rdzv_server.shell.ledger import Ledger
from rdzv_server.storage.base import StorageError
from tests.unit.server.shell.waiting import PATIENCE_S, pause, until

Changes = Mapping[bytes, bytes | None]

FULL = StorageError("no space left", "full")


class Disk:
    """A store whose commits take as long as the test wants, and fail when it wants."""

    name = "fake"

    def __init__(self) -> None:
        self.begun: list[dict[bytes, bytes | None]] = []
        """Commits, as they were asked for."""
        self.made: list[dict[bytes, bytes | None]] = []
        self.errors: deque[BaseException] = deque()
        """What the next commits end with."""
        self.threads: set[int] = set()
        self.at_once = 0
        self.most_at_once = 0
        self.tidied = 0
        self.closed = 0
        self._go = threading.Semaphore(0)
        self._held = True

    def load(self) -> dict[bytes, bytes]:
        return {}

    def commit(self, changes: Changes) -> None:
        self.threads.add(threading.get_ident())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.append(dict(changes))
        if self._held:
            assert self._go.acquire(timeout=PATIENCE_S), "the test forgot this commit"
        self.at_once -= 1
        if self.errors:
            raise self.errors.popleft()
        self.made.append(dict(changes))

    def tidy(self) -> None:
        self.threads.add(threading.get_ident())
        self.tidied += 1

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed += 1

    def finish_one(self, error: BaseException | None = None) -> None:
        """Let the commit that waits (or the next one) end."""
        if error is not None:
            self.errors.append(error)
        self._go.release()

    def hold_no_more(self) -> None:
        self._held = False
        self._go.release()


class Bench:
    """A ledger and what came out of it."""

    def __init__(self, disk: Disk | None) -> None:
        self.done: list[str] = []
        self.turns: list[list[str]] = []
        """The same, call by call."""
        self.troubles: list[str] = []
        self.took: list[float] = []
        self.ledger = Ledger(disk, self._execute, self.troubles.append, self.took.append)

    def _execute(self, effects: list[Effect]) -> None:
        assert not any(isinstance(e, Persist) for e in effects)
        events = [e.event for e in effects if isinstance(e, Report)]
        self.done += events
        self.turns.append(events)

    def take(self, *events: str, **changes: bytes | None) -> None:
        """Effects of one step, with what it has to write."""
        effects: list[Effect] = [Report(event) for event in events]
        if changes:
            effects.insert(0, Persist({k.encode(): v for k, v in changes.items()}))
        self.ledger.take(effects)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that failed is tried again."""
    monkeypatch.setattr(module, "RETRY_S", 0.02)


@pytest.fixture
async def bench(disk: Disk) -> AsyncIterator[Bench]:
    made = Bench(disk)
    yield made
    disk.hold_no_more()
    with contextlib.suppress(RuntimeError):  # a test has closed it
        await made.ledger.close()


async def begun(disk: Disk, count: int) -> None:
    await until(lambda: len(disk.begun) >= count)


# --- waiting ----------------------------------------------------------------------------------


async def test_effects_wait_for_their_commit(bench: Bench, disk: Disk) -> None:
    bench.take("reply", a=b"1")
    await begun(disk, 1)
    await pause(0.05)
    assert (bench.done, bench.ledger.clean) == ([], False)
    disk.finish_one()
    await until(lambda: bench.done == ["reply"])
    assert bench.ledger.clean
    assert disk.made == [{b"a": b"1"}]


async def test_without_anything_to_write_effects_are_done_at_once(bench: Bench, disk: Disk) -> None:
    bench.take("one")
    bench.take("two")
    assert bench.done == ["one", "two"]
    await pause(0.02)
    assert disk.begun == []


async def test_nothing_to_do_is_nothing(bench: Bench, disk: Disk) -> None:
    bench.ledger.take([])
    await pause(0.02)
    assert disk.begun == []
    assert bench.ledger.clean


async def test_records_alone_are_written_too(bench: Bench, disk: Disk) -> None:
    disk.hold_no_more()
    bench.take(a=b"1")
    await until(lambda: bench.ledger.clean)
    assert disk.made == [{b"a": b"1"}]
    assert bench.done == []


async def test_effects_without_records_wait_behind_an_earlier_commit(
    bench: Bench, disk: Disk
) -> None:
    """Whoever is told something may have learned of what is not safe yet."""
    bench.take("first", a=b"1")
    bench.take("second")
    await begun(disk, 1)
    bench.take("third")
    assert bench.done == []
    disk.finish_one()
    await until(lambda: len(bench.done) == 3)
    assert bench.done == ["first", "second", "third"]
    assert len(disk.begun) == 1


async def test_effects_without_records_wait_for_no_later_commit_than_they_must(
    bench: Bench, disk: Disk
) -> None:
    bench.take("first", a=b"1")
    await begun(disk, 1)
    bench.take("between")
    bench.take("second", b=b"2")
    bench.take("after")
    disk.finish_one()
    await until(lambda: bench.done == ["first", "between"])
    await begun(disk, 2)
    await pause(0.02)
    assert bench.done == ["first", "between"]
    disk.finish_one()
    await until(lambda: len(bench.done) == 4)
    assert bench.done[2:] == ["second", "after"]


async def test_the_loop_is_not_held_up_by_a_commit(bench: Bench, disk: Disk) -> None:
    bench.take("reply", a=b"1")
    await begun(disk, 1)
    before = asyncio.get_running_loop().time()
    await pause(0.01)
    assert asyncio.get_running_loop().time() - before < PATIENCE_S / 2
    disk.finish_one()
    await until(lambda: bench.done == ["reply"])


# --- group commit -----------------------------------------------------------------------------


async def test_what_comes_within_a_turn_is_one_commit(bench: Bench, disk: Disk) -> None:
    disk.hold_no_more()
    for n in range(50):
        bench.take(f"e{n}", **{f"k{n}": b"v"})
    await until(lambda: bench.ledger.clean)
    assert [len(c) for c in disk.made] == [50]
    assert bench.done == [f"e{n}" for n in range(50)]


async def test_what_comes_during_a_commit_goes_together_into_the_next(
    bench: Bench, disk: Disk
) -> None:
    bench.take("e0", k0=b"v")
    await begun(disk, 1)
    for n in range(1, 20):
        bench.take(f"e{n}", **{f"k{n}": b"v"})
        await pause(0)
    disk.finish_one()
    await begun(disk, 2)
    disk.finish_one()
    await until(lambda: bench.ledger.clean)
    assert [len(c) for c in disk.made] == [1, 19]
    assert bench.done == [f"e{n}" for n in range(20)]


async def test_the_newest_state_of_a_record_is_what_is_written(bench: Bench, disk: Disk) -> None:
    bench.take("e0", z=b"0")
    await begun(disk, 1)
    bench.take("e1", a=b"1", b=b"1")
    bench.take("e2", a=b"2", b=None)
    disk.hold_no_more()
    await until(lambda: bench.ledger.clean)
    assert disk.made[1:] == [{b"a": b"2", b"b": None}]


async def test_one_commit_at_a_time_by_one_thread(bench: Bench, disk: Disk) -> None:
    for n in range(10):
        bench.take(f"e{n}", a=b"%d" % n)
        await begun(disk, n + 1)
        disk.finish_one()
        await until(lambda n=n: len(bench.done) == n + 1)  # type: ignore[misc]
    assert disk.most_at_once == 1
    assert len(disk.threads) == 1
    assert threading.get_ident() not in disk.threads


async def test_what_effects_bring_about_keeps_its_place(disk: Disk) -> None:
    """Executing effects may lead to more of them: a listener that opens forms a generation."""
    done: list[str] = []

    def execute(effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Report)
            done.append(effect.event)
            if effect.event == "listen":
                ledger.take([Persist({b"generation": b"1"}), Report("formed")])
            if effect.event == "log":
                ledger.take([Report("logged")])

    ledger = Ledger(disk, execute, lambda why: None)
    ledger.take([Persist({b"a": b"1"}), Report("listen"), Report("log")])
    ledger.take([Report("later")])
    await begun(disk, 1)
    disk.finish_one()
    await begun(disk, 2)
    assert done == ["listen", "log", "later"]
    disk.finish_one()
    await until(lambda: "formed" in done)
    assert done == ["listen", "log", "later", "formed", "logged"]
    await ledger.close()


async def test_effects_that_come_of_the_last_release_do_not_get_stuck(disk: Disk) -> None:
    done: list[str] = []

    def execute(effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Report)
            done.append(effect.event)
            if effect.event == "first":
                ledger.take([Report("answer")])

    disk.hold_no_more()
    ledger = Ledger(disk, execute, lambda why: None)
    ledger.take([Persist({b"a": b"1"}), Report("first")])
    await until(lambda: ledger.clean)
    assert done == ["first", "answer"]
    ledger.take([Report("at once")])
    assert done[-1] == "at once"
    await ledger.close()


async def test_an_effect_that_raises_lets_nothing_pass_those_behind_it(disk: Disk) -> None:
    done: list[str] = []
    raised: list[str] = []

    def execute(effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Report)
            if effect.event == "a bug":
                raise ValueError(effect.event)
            done.append(effect.event)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: raised.append(str(context["exception"])))
    disk.hold_no_more()
    ledger = Ledger(disk, execute, lambda why: None)
    ledger.take([Persist({b"a": b"1"}), Report("a bug")])
    ledger.take([Report("behind")])
    await until(lambda: raised == ["a bug"])
    ledger.take([Report("later")])
    assert (done, ledger.clean) == ([], False)
    ledger.take([Persist({b"b": b"2"}), Report("last")])
    await until(lambda: ledger.clean)
    assert done == ["behind", "later", "last"]
    await ledger.close()


async def test_each_commit_is_timed(bench: Bench, disk: Disk) -> None:
    bench.take("e", a=b"1")
    await begun(disk, 1)
    await pause(0.05)
    disk.finish_one()
    await until(lambda: bench.ledger.clean)
    assert len(bench.took) == 1
    assert 0.04 < bench.took[0] < PATIENCE_S


async def test_the_store_tidies_up_when_nobody_waits(bench: Bench, disk: Disk) -> None:
    bench.take("e0", a=b"1")
    await begun(disk, 1)
    bench.take("e1", a=b"2")
    disk.finish_one()
    await begun(disk, 2)
    assert disk.tidied == 0
    disk.finish_one()
    await until(lambda: disk.tidied == 1)


# --- failure ----------------------------------------------------------------------------------


async def test_nothing_is_told_while_a_commit_fails_and_all_of_it_once_it_works(
    bench: Bench, disk: Disk
) -> None:
    bench.take("first", a=b"1")
    await begun(disk, 1)
    bench.take("behind")
    disk.finish_one(FULL)
    await until(lambda: bench.troubles == ["no space left"])
    bench.take("meanwhile")
    bench.take("second", b=b"2")
    await begun(disk, 2)
    disk.finish_one(FULL)
    await begun(disk, 3)
    assert bench.done == []
    assert not bench.ledger.clean
    disk.finish_one()
    await until(lambda: bench.ledger.clean)
    assert bench.done == ["first", "behind", "meanwhile", "second"]
    assert disk.made == [{b"a": b"1", b"b": b"2"}]


async def test_trouble_is_told_once_and_its_end_once(bench: Bench, disk: Disk) -> None:
    bench.take("e", a=b"1")
    for n in range(4):
        await begun(disk, n + 1)
        disk.finish_one(FULL)
    await begun(disk, 5)
    assert bench.troubles == ["no space left"]
    disk.finish_one()
    await until(lambda: bench.ledger.clean)
    assert bench.troubles == ["no space left", ""]
    bench.take("f", a=b"2")
    await begun(disk, 6)
    disk.finish_one(StorageError("device gone", "io"))
    await begun(disk, 7)
    disk.finish_one()
    await until(lambda: bench.ledger.clean)
    assert bench.troubles == ["no space left", "", "device gone", ""]


async def test_the_end_of_trouble_is_told_before_what_waited_for_it(disk: Disk) -> None:
    """Whoever gets a reply may ask at once whether the server is read-only."""
    order: list[str] = []
    ledger = Ledger(
        disk,
        lambda effects: order.append("effects"),
        lambda why: order.append(f"trouble {why!r}"),
    )
    ledger.take([Persist({b"a": b"1"}), Report("e")])
    await begun(disk, 1)
    disk.finish_one(FULL)
    await until(lambda: len(order) == 1)
    disk.hold_no_more()
    await until(lambda: ledger.clean)
    assert order == ["trouble 'no space left'", "trouble ''", "effects"]
    await ledger.close()


async def test_changes_of_a_failed_commit_lie_under_newer_ones(bench: Bench, disk: Disk) -> None:
    bench.take("old", a=b"old", b=b"old", c=b"old")
    await begun(disk, 1)
    bench.take("new", a=b"new", b=None)
    disk.finish_one(FULL)
    await begun(disk, 2)
    assert disk.begun[1] == {b"a": b"new", b"b": None, b"c": b"old"}
    disk.finish_one()
    await until(lambda: bench.ledger.clean)
    assert bench.done == ["old", "new"]


async def test_what_comes_while_it_waits_to_try_again_goes_along(
    bench: Bench, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    bench.take("e0", a=b"1")
    await begun(disk, 1)
    disk.finish_one(FULL)
    await until(lambda: bool(bench.troubles))
    for n in range(1, 5):
        bench.take(f"e{n}", **{f"k{n}": b"v"})
        await pause(0)
    assert len(disk.begun) == 1
    disk.hold_no_more()
    await until(lambda: bench.ledger.clean)
    assert [len(c) for c in disk.made] == [5]
    assert bench.done == [f"e{n}" for n in range(5)]


async def test_a_retry_is_not_a_hot_loop(
    bench: Bench, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.1)
    disk.errors.extend([FULL] * 1000)
    disk.hold_no_more()
    bench.take("e", a=b"1")
    await pause(0.35)
    assert 2 <= len(disk.begun) <= 5
    disk.errors.clear()
    await until(lambda: bench.ledger.clean)


async def test_an_error_that_no_store_should_raise_counts_as_a_failure_too(
    bench: Bench, disk: Disk
) -> None:
    bench.take("e", a=b"1")
    await begun(disk, 1)
    disk.finish_one(ValueError("a bug"))
    await until(lambda: bench.troubles == ["ValueError('a bug')"])
    assert bench.done == []
    disk.hold_no_more()
    await until(lambda: bench.done == ["e"])


async def test_trouble_that_itself_has_something_to_write_is_written_along(disk: Disk) -> None:
    """The core is told of trouble, and may answer with effects."""
    done: list[str] = []

    def trouble(why: str) -> None:
        ledger.take([Persist({b"why": why.encode()}), Report(f"told {why!r}")])

    def execute(effects: list[Effect]) -> None:
        done.extend(e.event for e in effects if isinstance(e, Report))

    ledger = Ledger(disk, execute, trouble)
    ledger.take([Persist({b"a": b"1"}), Report("e")])
    await begun(disk, 1)
    disk.finish_one(FULL)
    await begun(disk, 2)
    assert disk.begun[1] == {b"a": b"1", b"why": b"no space left"}
    disk.hold_no_more()
    await until(lambda: ledger.clean)
    assert done == ["e", "told 'no space left'", "told ''"]
    assert disk.made[-1] == {b"why": b""}
    await ledger.close()


# --- the end ----------------------------------------------------------------------------------


async def test_at_the_end_what_is_left_is_stored_first(bench: Bench, disk: Disk) -> None:
    bench.take("e0", a=b"1")
    await begun(disk, 1)
    bench.take("e1", b=b"2")
    closing = asyncio.ensure_future(bench.ledger.close())
    await pause(0.02)
    assert disk.closed == 0
    disk.hold_no_more()
    await asyncio.wait_for(closing, PATIENCE_S)
    assert disk.made == [{b"a": b"1"}, {b"b": b"2"}]
    assert bench.done == ["e0", "e1"]
    assert disk.closed == 1
    assert len(disk.threads) == 1


async def test_a_ledger_at_rest_closes_at_once(bench: Bench, disk: Disk) -> None:
    began = time.monotonic()
    await bench.ledger.close()
    assert time.monotonic() - began < module.CLOSE_S / 2
    assert disk.closed == 1


async def test_a_store_that_keeps_failing_holds_up_the_end_for_a_limited_time(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    monkeypatch.setattr(module, "RETRY_S", 0.03)
    bench = Bench(disk)
    disk.errors.extend([FULL] * 1000)
    disk.hold_no_more()
    bench.take("never", a=b"1")
    await until(lambda: bool(bench.troubles))
    await asyncio.wait_for(bench.ledger.close(), PATIENCE_S)
    assert bench.done == []
    assert disk.closed == 1


def failures_told() -> list[str]:
    """What the loop's handler of forgotten exceptions is told from now on."""
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(str(context.get("exception"))))
    return told


async def test_after_the_end_a_failed_commit_is_not_tried_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on for two seconds after its ledger: clients read their goodbye."""
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    monkeypatch.setattr(module, "RETRY_S", 0.15)
    told = failures_told()
    bench = Bench(disk)
    disk.errors.append(FULL)
    disk.hold_no_more()
    bench.take("never", a=b"1")
    await until(lambda: bool(bench.troubles))
    await bench.ledger.close()
    tried = len(disk.begun)
    await pause(0.3)
    assert len(disk.begun) == tried
    assert told == []


async def test_after_the_end_what_still_comes_is_not_stored_and_harms_nobody(
    bench: Bench, disk: Disk
) -> None:
    told = failures_told()
    await bench.ledger.close()
    bench.take("late", a=b"1")
    await pause(0.05)
    assert disk.begun == []
    assert bench.done == []
    assert told == []


async def test_a_disk_that_hangs_does_not_hold_up_the_end(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L12: a commit that does not return (a dead NFS server, a device in error recovery) must not keep the
    server from ending."""
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    bench = Bench(disk)
    bench.take("never", a=b"1")
    await begun(disk, 1)
    closing = asyncio.ensure_future(bench.ledger.close())
    done, _ = await asyncio.wait([closing], timeout=1)
    disk.hold_no_more()
    await asyncio.wait_for(closing, PATIENCE_S)
    assert done, "it waited for the disk"


# --- no store ---------------------------------------------------------------------------------


async def test_without_a_store_everything_is_immediate() -> None:
    bench = Bench(None)
    for n in range(5):
        bench.take(f"e{n}")
        assert bench.done[-1] == f"e{n}"
        assert bench.ledger.clean
    await asyncio.wait_for(bench.ledger.close(), PATIENCE_S)
    assert bench.troubles == []


async def test_without_a_store_no_thread_is_started() -> None:
    before = threading.active_count()
    bench = Bench(None)
    bench.take("e")
    assert threading.active_count() == before
    await bench.ledger.close()


# --- another server leads -----------------------------------------------------------------------


async def test_s30_what_waits_when_another_server_leads_is_never_told(
    bench: Bench, disk: Disk
) -> None:
    bench.take("reply", a=b"1")
    await begun(disk, 1)
    bench.take("behind", b=b"2")
    bench.ledger.abandon()
    disk.finish_one()
    await until(lambda: disk.made == [{b"a": b"1"}])
    await pause(0.05)
    assert bench.done == []
    assert disk.begun == [{b"a": b"1"}], "nothing more is written"
    bench.take("late", c=b"3")
    assert bench.done == []
