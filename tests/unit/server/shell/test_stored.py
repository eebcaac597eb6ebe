"""Opening what state is kept in, and a server that begins with it."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from rdzv_proto import codec
from rdzv_proto.framing import PREAMBLE
from rdzv_proto.messages import (
    Alive,
    Done,
    Goodbye,
    Heartbeat,
    HelloNode,
    KvAdd,
    KvNumber,
    KvSet,
    Resume,
    Welcome,
)
from rdzv_server.config import DATABASE, Config
from rdzv_server.core.durable.stored import StoredMeta, StoredSession, key_bytes, pack, unpack
from rdzv_server.core.settings import Identity, Settings
from rdzv_server.shell import ledger, log
from rdzv_server.shell import stored as module
from rdzv_server.shell.listen import listeners
from rdzv_server.shell.server import Server
from rdzv_server.shell.stored import CommitNumbers, Stored, mend, new_epoch, open_stored
from rdzv_server.storage import mounts
from rdzv_server.storage.base import Cause, StorageError
from rdzv_server.storage.sqlite import SqliteStore
from tests import nextversion
from tests.lab import EPOCH, RUN, Lab, policy
from tests.unit.server.shell.peers import Peer, Shell
from tests.unit.server.shell.waiting import pause, until

META = key_bytes(("meta",))


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, object]]]:
    """What was logged."""
    seen: list[tuple[str, str, dict[str, object]]] = []

    def note(name: str, level: str = "info", **more: object) -> None:
        seen.append((name, level, more))

    monkeypatch.setattr(log, "event", note)
    monkeypatch.setattr(log, "write", lambda report: note(report.event, report.level))
    return seen


# --- opening ----------------------------------------------------------------------------------


def fill(path: Path, records: Mapping[bytes, bytes]) -> None:
    store = SqliteStore(path)
    store.load()
    store.commit(records)
    store.close()


def test_memory_opens_nothing_and_says_nothing(
    lines: list[tuple[str, str, dict[str, object]]],
) -> None:
    assert open_stored(Config(state="memory")) is None
    assert lines == []


def test_a_free_port_has_its_state_in_memory_with_a_warning(
    lines: list[tuple[str, str, dict[str, object]]],
) -> None:
    assert open_stored(Config(port=0)) is None
    assert [(event, level) for event, level, _ in lines] == [("state_in_memory", "warning")]


def test_a_new_database_is_empty_and_has_no_epoch(tmp_path: Path) -> None:
    found = open_stored(Config(data_dir=str(tmp_path / "data")))
    assert found is not None
    assert found.records == {}
    assert found.epoch is None
    assert found.place == str(tmp_path / "data" / DATABASE)
    found.store.close()


def test_what_was_stored_is_there_with_its_epoch(tmp_path: Path) -> None:
    lab = Lab()
    lab.world("a", "b", rules=policy(2))
    fill(tmp_path / "x.db", lab.stored)
    found = open_stored(Config(state=f"sqlite:{tmp_path}/x.db"))
    assert found is not None
    assert found.records == lab.stored
    assert found.epoch == EPOCH
    found.store.close()


def test_an_older_schema_is_brought_forward_with_a_line_in_the_log_and_an_older_server_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[tuple[str, str, dict[str, object]]]
) -> None:
    lab = Lab()
    lab.world("a", "b", rules=policy(2))
    fill(tmp_path / "x.db", lab.stored)
    config = Config(state=f"sqlite:{tmp_path}/x.db")
    with monkeypatch.context() as patch:
        nextversion.install_schema(patch)
        for _ in range(2):
            found = open_stored(config)
            assert found is not None
            assert found.epoch == EPOCH
            assert set(found.records) == set(lab.stored)
            sessions = [v for k, v in found.records.items() if k.startswith(b"session")]
            assert len(sessions) == 2
            assert all(nextversion.MIGRATED in unpack(s, StoredSession).client for s in sessions)
            found.store.close()
    ((_, level, fields),) = [line for line in lines if line[0] == "state_migrated"]
    assert (level, fields["was"], fields["now"]) == ("info", 1, 2)
    assert fields["records"] == len(lab.stored)
    with pytest.raises(StorageError, match="has schema version 2, and this server knows"):
        open_stored(config)


def test_records_are_not_shown_in_a_log(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    assert "secret" not in repr(Stored(store, {b"k": b"secret"}, "x.db"))
    store.close()


def test_a_meta_record_of_another_version_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    fill(path, {META: b"\xc1"})
    found = open_stored(Config(state=f"sqlite:{path}"))
    assert found is not None
    with pytest.raises(StorageError, match="another version") as caught:
        _ = found.epoch
    assert str(path) in str(caught.value)
    assert caught.value.cause == "newer"
    assert "\n" not in str(caught.value)
    found.store.close()


def test_a_database_in_use_is_refused_and_the_other_server_keeps_it(tmp_path: Path) -> None:
    config = Config(data_dir=str(tmp_path))
    first = open_stored(config)
    assert first is not None
    with pytest.raises(StorageError, match="in use by another server") as caught:
        open_stored(config)
    assert caught.value.cause == "owned"
    first.store.commit({b"a\0": b"1"})
    first.store.close()
    again = open_stored(config)
    assert again is not None
    assert again.records == {b"a\0": b"1"}
    again.store.close()


def test_a_database_that_cannot_be_read_is_let_go_of(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"no database at all, and rather short")
    config = Config(data_dir=str(tmp_path))
    for _ in range(2):  # the second time it would be `owned`, had the first kept it
        with pytest.raises(StorageError) as caught:
            open_stored(config)
        assert caught.value.cause == "corrupt"


# --- the usual place --------------------------------------------------------------------------


def test_the_usual_place_is_used_when_nothing_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    found = open_stored(Config())
    assert found is not None
    assert found.place == str(tmp_path / DATABASE)
    found.store.close()


@pytest.mark.parametrize("cause", ["access", "network", "unsupported"])
def test_a_usual_place_that_cannot_be_used_is_a_warning(
    cause: Cause,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[tuple[str, str, dict[str, object]]],
) -> None:
    def refuse(path: Path, *, force_network_fs: bool) -> SqliteStore:
        raise StorageError(f"{path}: not for you", cause)

    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(module, "SqliteStore", refuse)
    assert open_stored(Config()) is None
    ((event, level, more),) = lines
    assert (event, level) == ("state_in_memory", "warning")
    assert f"{tmp_path / DATABASE}: not for you" in str(more["text"])
    assert "--data-dir" in str(more["text"])
    with pytest.raises(StorageError):  # but not where it was asked for
        open_stored(Config(data_dir=str(tmp_path)))


@pytest.mark.parametrize("forced", [False, True])
def test_a_network_file_system_is_taken_only_when_that_is_asked_for(
    forced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "is_network", lambda kind: True)
    config = Config(data_dir=str(tmp_path), force_network_fs=forced)
    if forced:
        found = open_stored(config)
        assert found is not None
        found.store.close()
        assert "kept" in mend(config)
    else:
        with pytest.raises(StorageError, match="--force-network-fs"):
            open_stored(config)


def test_a_file_where_the_folder_should_be_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError) as caught:
        open_stored(Config(data_dir=str(tmp_path / "file")))
    assert caught.value.cause == "access"
    assert "disk" not in str(caught.value)


def test_damage_in_the_usual_place_is_an_error_and_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    (tmp_path / DATABASE).write_bytes(b"no database at all, and rather short")
    with pytest.raises(StorageError) as caught:
        open_stored(Config())
    assert caught.value.cause == "corrupt"


def test_another_server_in_the_usual_place_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    first = open_stored(Config())
    assert first is not None
    with pytest.raises(StorageError, match="in use"):
        open_stored(Config())
    first.store.close()


# --- repair -----------------------------------------------------------------------------------


def test_a_repair_needs_a_place() -> None:
    for config in (Config(state="memory"), Config(port=0)):
        with pytest.raises(StorageError, match="--repair needs"):
            mend(config)


def test_a_repair_begins_a_new_epoch_and_keeps_keys_of_runs(tmp_path: Path) -> None:
    lab = Lab()
    (a,) = lab.world("a", rules=policy(1))
    a.ask(KvSet(key="k", value=b"v"))
    fill(tmp_path / DATABASE, lab.stored)
    config = Config(data_dir=str(tmp_path))
    text = mend(config)
    assert "new epoch" in text
    found = open_stored(config)
    assert found is not None
    assert found.epoch is not None
    assert found.epoch > EPOCH
    kinds = {raw.partition(b"\0")[0] for raw in found.records}
    assert b"session" not in kinds
    assert b"generation" not in kinds
    assert key_bytes(("key", RUN, 0, "k")) in found.records
    found.store.close()


def test_a_repair_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        mend(Config(data_dir=str(tmp_path / "empty")))


def test_an_epoch_of_a_start_without_state_is_above_every_earlier_one() -> None:
    first = new_epoch()
    assert first > 1_700_000_000_000
    assert new_epoch() >= first


def test_commits_are_counted() -> None:
    numbers = CommitNumbers()
    numbers.took(0.003)
    numbers.took(0.004)
    assert sum(numbers.latency.counts) == 2
    assert numbers.failures == 0


# --- a server that begins with it -------------------------------------------------------------


class Kept:
    """A store that outlives its servers."""

    name = "fake"

    def __init__(self, records: Mapping[bytes, bytes] | None = None) -> None:
        self.records = dict(records or {})
        self.error: StorageError | None = None

    def load(self) -> dict[bytes, bytes]:
        return dict(self.records)

    def commit(self, changes: Mapping[bytes, bytes | None]) -> None:
        if self.error is not None:
            raise self.error
        for key, record in changes.items():
            if record is None:
                self.records.pop(key, None)
            else:
                self.records[key] = record

    def tidy(self) -> None: ...

    def close(self) -> None: ...

    @property
    def meta(self) -> StoredMeta:
        return unpack(self.records[META], StoredMeta)


class Starts:
    """One server after the other on the same store."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.number = 0
        self.shell: Shell | None = None

    async def start(self) -> Shell:
        await self.stop()
        self.number += 1
        identity = Identity("rdzv test", f"start{self.number}", EPOCH, bytes([self.number]) * 32)
        (sock,) = listeners("127.0.0.1", 0)
        stored = Stored(self.kept, self.kept.load(), "kept")
        server = Server(Settings(), identity, stored=stored)
        accepting = await asyncio.get_running_loop().create_server(server.protocol, sock=sock)
        self.shell = Shell(server, sock.getsockname()[1], accepting)
        return self.shell

    async def stop(self) -> None:
        shell, self.shell = self.shell, None
        if shell is not None:
            await shell.close()


@pytest.fixture
async def starts() -> AsyncIterator[Starts]:
    made = Starts(Kept())
    yield made
    await made.stop()


async def resumed(shell: Shell, name: str, welcome: Welcome) -> tuple[Peer, Welcome]:
    peer = await shell.connect()
    peer.writer.write(PREAMBLE)
    proof = Resume(welcome.epoch, welcome.session, welcome.token)
    incarnation = name.encode().ljust(16, b".")
    hello = HelloNode(run="r", node_id=name, name=name, incarnation=incarnation, resume=proof)
    peer.writer.write(codec.encode(9_000, hello))
    reply = await peer.until(Welcome)
    assert isinstance(reply, Welcome)
    return peer, reply


async def test_a_session_goes_on_in_the_next_server_process(starts: Starts) -> None:
    shell = await starts.start()
    peer = await shell.connect()
    welcome = await peer.hello("a")
    request = peer.send(KvAdd(key="n", delta=5))
    first = await peer.until(KvNumber)
    shell = await starts.start()
    peer, again = await resumed(shell, "a", welcome)
    assert again.resumed
    assert (again.session, again.token) == (welcome.session, welcome.token)
    assert again.instance != welcome.instance
    peer.writer.write(codec.encode(request, KvAdd(key="n", delta=5)))
    assert await peer.until(KvNumber) == first


async def test_a_server_that_resumes_overwrites_nothing_of_what_it_resumes(
    starts: Starts,
) -> None:
    """The reservation of session ids and the floor of generation numbers, before all."""
    lab = Lab()
    lab.world("a", "b", rules=policy(2))
    meta = unpack(lab.stored[META], StoredMeta)
    before = lab.stored | {META: pack(StoredMeta(EPOCH, meta.sessions_reserved, 77))}
    starts.kept.records.update(before)
    await starts.start()
    await pause(0.05)
    assert starts.kept.meta == StoredMeta(EPOCH, meta.sessions_reserved, 77)
    assert starts.kept.records == before


async def test_session_ids_are_not_given_out_again_by_the_second_server_after(
    starts: Starts,
) -> None:
    shell = await starts.start()
    first = await (await shell.connect()).hello("a")
    shell = await starts.start()
    await resumed(shell, "a", first)
    shell = await starts.start()
    other = await (await shell.connect()).hello("b")
    assert other.session > first.session
    _, again = await resumed(shell, "a", first)
    assert again.session == first.session
    assert {s.node_id for s in shell.server.tables.sessions.values()} == {"a", "b"}


async def test_nothing_is_told_while_it_cannot_be_stored_and_heartbeats_are_answered(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "RETRY_S", 0.05)
    shell = await starts.start()
    peer = await shell.node("a")
    starts.kept.error = StorageError("no space left", "full")
    peer.send(KvSet(key="k", value=b"v"))
    await until(lambda: bool(shell.server.tables.read_only))
    for _ in range(3):
        peer.send(Heartbeat())
        assert isinstance(await peer.next(), Alive)
    assert shell.server.commits.failures == 1
    starts.kept.error = None
    assert isinstance(await peer.next(), Done)
    assert shell.server.tables.read_only == ""
    assert key_bytes(("key", "r", 0, "k")) in starts.kept.records


async def test_heartbeats_are_answered_after_a_request_that_was_refused_meanwhile(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S28. A refusal is recorded; that must not make the next heartbeat wait for the disk."""
    monkeypatch.setattr(ledger, "RETRY_S", 0.05)
    shell = await starts.start()
    peer = await shell.node("a")
    peer.send(KvSet(key="k", value=b"no number"))
    assert isinstance(await peer.next(), Done)
    starts.kept.error = StorageError("no space left", "full")
    peer.send(KvAdd(key="k", delta=1))
    peer.send(Heartbeat())
    told: list[object] = []
    with contextlib.suppress(asyncio.TimeoutError):
        while not any(isinstance(message, Alive) for message in told):
            told.append(await asyncio.wait_for(peer.next(), 1))
    starts.kept.error = None
    assert any(isinstance(message, Alive) for message in told)


async def test_a_server_that_ends_does_not_record_that_it_refused_because_of_it(
    starts: Starts,
) -> None:
    """The next one does what it was asked under the same request id."""
    shell = await starts.start()
    peer = await shell.connect()
    welcome = await peer.hello("a")
    ending = asyncio.ensure_future(starts.stop())
    await peer.until(Goodbye)
    request = peer.send(KvAdd(key="n", delta=1))
    with contextlib.suppress(ConnectionError):
        await peer.rest()
    await ending
    shell = await starts.start()
    peer, _ = await resumed(shell, "a", welcome)
    peer.writer.write(codec.encode(request, KvAdd(key="n", delta=1)))
    reply = await peer.next()
    assert isinstance(reply, KvNumber), reply
    assert reply.value == 1


async def test_what_still_comes_while_a_server_ends_raises_nothing(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    shell = await starts.start()
    peer = await shell.node("a", lease_s=0.3)
    other = await shell.node("b", lease_s=0.3)
    peer.send(KvSet(key="k", value=b"v"))
    await peer.until(Done)
    ending = asyncio.ensure_future(starts.stop())
    await peer.until(Goodbye)
    peer.send(KvAdd(key="n", delta=1))
    other.send(KvAdd(key="n", delta=1))
    await ending
    await pause(0.05)
    assert told == []


def test_records_that_a_server_does_not_understand_are_one_line_and_exit_code_2(
    tmp_path: Path,
) -> None:
    lab = Lab()
    lab.world("a", rules=policy(1))
    records = lab.stored | {key_bytes(("run", RUN)): b"\xc1"}
    fill(tmp_path / DATABASE, records)
    command = [sys.executable, "-m", "rdzv_server", "--port=0", "--http-port=off"]
    result = subprocess.run(
        [*command, f"--data-dir={tmp_path}", "--loop=asyncio"],
        capture_output=True, text=True, timeout=20, check=False, env=os.environ | {},
    )  # fmt: skip
    assert "Traceback" not in result.stderr
    assert result.returncode == 2
    assert str(tmp_path / DATABASE) in result.stderr
    assert result.stdout == ""
    store = SqliteStore(tmp_path / DATABASE)
    assert store.load() == records, "it wrote to what it could not read"
    store.close()


def test_what_a_server_that_ends_does_not_answer_is_done_by_the_next_one() -> None:
    """The same without sockets."""
    lab = Lab()
    (a,) = lab.world("a", rules=policy(1))
    lab.apply(lab.core.shut_down(lab.now, 500))
    assert a.add("n", request_id=50) is None, "it stays in flight"
    lab.restart()
    a.resume()
    assert a.add("n", request_id=50) == KvNumber(value=1, revision=1)


def test_an_unreadable_store_is_said_to_be_of_another_version(tmp_path: Path) -> None:
    error = module.unreadable(f"{tmp_path}/x", ValueError("record ('run', 'x'): bad"))
    assert str(error).startswith(f"{tmp_path}/x: record ('run', 'x'): bad")
    assert error.cause == "newer"
