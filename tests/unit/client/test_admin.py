"""The connection behind `rdzv status` and `rdzv close`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_client.admin import Admin
from rdzv_client.errors import ConnectionLost, RequestTimeout, UnknownRun, Unsupported
from rdzv_client.names import CLIENT
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Authenticate,
    CloseRun,
    Error,
    HelloAdmin,
    ListRuns,
    MemberPage,
    Members,
    MemberStatus,
    RunStatus,
    Status,
)
from tests.ports import free_port
from tests.unit.client.fake_server import PATIENCE_S, FakeServer


@pytest.fixture
def admin(server: FakeServer) -> Iterator[Admin]:
    made = Admin(server.address, timeout_s=PATIENCE_S)
    yield made
    made.close()


def test_it_introduces_itself_and_belongs_to_no_run(server: FakeServer, admin: Admin) -> None:
    assert server.all(HelloAdmin) == [HelloAdmin(client=CLIENT)]
    assert admin.welcome.instance == "fake"


def test_the_status_comes_with_its_round_trip(server: FakeServer, admin: Admin) -> None:
    status, round_trip_s = admin.status()
    assert status == server.status
    assert round_trip_s > 0


def test_runs_are_asked_for_page_by_page(server: FakeServer, admin: Admin) -> None:
    server.runs = {f"r{i}": RunStatus(run=f"r{i}", phase="live") for i in range(5)}
    server.page_rows = 2
    assert [run.run for run in admin.runs()] == ["r0", "r1", "r2", "r3", "r4"]
    assert [ask.after for ask in server.all(ListRuns)] == ["", "r1", "r3"]


def test_one_run_can_be_asked_for(server: FakeServer, admin: Admin) -> None:
    server.runs = {name: RunStatus(run=name, phase="live") for name in ("a", "b", "c")}
    assert [run.run for run in admin.runs("b")] == ["b"]
    server.on(ListRuns, lambda m: Error(code=ErrorCode.UNKNOWN_RUN, message=f"no run {m.only!r}"))
    with pytest.raises(UnknownRun, match="no run 'x'"):
        admin.runs("x")


def test_members_are_asked_for_page_by_page(server: FakeServer, admin: Admin) -> None:
    server.members = [MemberStatus(node_id=f"n{i}", name="n", state="idle") for i in range(5)]
    server.page_rows = 2
    assert [m.node_id for m in admin.members("r")] == ["n0", "n1", "n2", "n3", "n4"]
    assert [ask.offset for ask in server.all(Members)] == [0, 2, 4]


def test_members_that_leave_meanwhile_do_not_make_it_ask_for_ever(
    server: FakeServer, admin: Admin
) -> None:
    server.on(Members, lambda m: MemberPage(total=10))
    assert admin.members("r") == []


def test_a_run_is_closed_with_a_word(server: FakeServer, admin: Admin) -> None:
    admin.close_run("llama", "enough")
    assert server.wait_for(CloseRun) == CloseRun(run="llama", detail="enough")


def test_a_server_that_does_not_answer_is_not_waited_for_long(server: FakeServer) -> None:
    server.on(Status, None)
    admin = Admin(server.address, timeout_s=0.1)
    try:
        with pytest.raises(RequestTimeout, match="status: no answer"):
            admin.status()
    finally:
        admin.close()


def test_nobody_there_is_an_error_that_names_the_endpoint() -> None:
    where = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionLost, match=f"cannot reach rdzv-server at {where}"):
        Admin(where, timeout_s=0.1)


def test_a_refused_admin_leaves_nothing_behind(server: FakeServer) -> None:
    server.on(HelloAdmin, lambda m: Error(code=ErrorCode.UNSUPPORTED, message="version 9 only"))
    with pytest.raises(Unsupported, match="version 9 only"):
        Admin(server.address)
    assert server.peers[-1].gone.wait(PATIENCE_S)


def test_the_endpoint_may_come_from_the_environment(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDZV_ENDPOINT", server.address)
    admin = Admin()
    try:
        assert admin.status()[0] == server.status
    finally:
        admin.close()


def test_a_token_is_chosen_for_what_it_is_about_to_do(tmp_path: Path) -> None:
    master = Token(EVERYTHING, b"s" * 32)
    path = tmp_path / "token"
    path.touch(0o600)
    grants = (Grant(Scope.READ), Grant(Scope.ADMIN, "llama"))
    path.write_text("".join(master.derive(grant).text() + "\n" for grant in grants))
    with FakeServer(token=master) as server:
        for scope, run in ((Scope.READ, ""), (Scope.ADMIN, "llama")):
            Admin(server.address, PATIENCE_S, scope=scope, run=run, token_file=str(path)).close()
        with pytest.raises(ValueError, match="allows admin for run bert"):
            Admin(server.address, scope=Scope.ADMIN, run="bert", token_file=str(path))
        asked = [(answer.scope, answer.run) for answer in server.all(Authenticate)]
    assert asked == [("read", ""), ("admin", "llama")]


def test_what_it_does_not_take_is_named(server: FakeServer) -> None:
    with pytest.raises(TypeError, match="min_nodes"):
        Admin(server.address, min_nodes=2)
