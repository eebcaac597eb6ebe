"""What a token's scope and run, and a certificate's names, allow: S4's neighbours T2, T3 and T22."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rdzv_proto.auth import EVERYTHING, Grant, Scope
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyRequest,
    CloseRun,
    Done,
    Error,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    ListRuns,
    MemberPage,
    Members,
    Runs,
    ServerStatus,
    ShowGeneration,
    Status,
    Welcome,
)
from rdzv_server.core.events import Denied, Identified
from rdzv_server.core.rights import speaks_for
from rdzv_server.core.settings import Settings
from tests.lab import Lab, Wire, policy
from tests.unit.proto.tcpstore_bytes import HELLO

JOIN_A = Grant(Scope.JOIN, "a")


@dataclass
class Guarded:
    lab: Lab

    def connect(
        self,
        grant: Grant = EVERYTHING,
        names: tuple[str, ...] | None = None,
        peer: str = "10.0.0.9",
    ) -> Wire:
        wire = self.lab.connect(peer)
        self.lab.apply(self.lab.core.handle(self.lab.now, Identified(wire.conn, grant, names)))
        return wire

    def hello(self, wire: Wire, run: str, node_id: str = "n") -> Welcome | Error:
        reply = self.lab.send(
            wire, 1, HelloNode(run=run, node_id=node_id, name=node_id, incarnation=b"i" * 16)
        )
        assert isinstance(reply, Welcome | Error)
        return reply

    def admin(self, grant: Grant) -> Wire:
        wire = self.connect(grant)
        assert isinstance(self.lab.send(wire, 1, HelloAdmin()), Welcome)
        return wire


@pytest.fixture
def guarded() -> Guarded:
    lab = Lab(Settings(guarded=True))
    lab.world("a1", "a2", rules=policy(2), run="a")
    lab.world("b1", rules=policy(1), run="b")
    return Guarded(lab)


def code(reply: object) -> ErrorCode:
    assert isinstance(reply, Error), reply
    return ErrorCode(reply.code)


def test_t2_a_token_lets_a_node_into_its_own_run(guarded: Guarded) -> None:
    assert isinstance(guarded.hello(guarded.connect(JOIN_A), "a"), Welcome)


@pytest.mark.parametrize("run", ["b", "nowhere"])
def test_t3_a_token_of_one_run_opens_no_other_whether_it_is_there_or_not(
    guarded: Guarded, run: str
) -> None:
    reply = guarded.hello(guarded.connect(JOIN_A), run)
    assert code(reply) is ErrorCode.NOT_PERMITTED
    assert isinstance(reply, Error)
    assert reply.message == f"the token is good for run 'a' only, not for {run!r}"


@pytest.mark.parametrize("scope", [Scope.READ])
def test_t22_reading_is_no_taking_part(guarded: Guarded, scope: Scope) -> None:
    assert code(guarded.hello(guarded.connect(Grant(scope)), "a")) is ErrorCode.NOT_PERMITTED


def test_t3_a_worker_needs_a_token_of_its_run_as_well(guarded: Guarded) -> None:
    lab = guarded.lab
    fence = lab.run("b").fence
    assert fence is not None
    hello = HelloWorker(
        run="b", node_id="b1", fence=fence, rank=0, incarnation=b"w" * 16,
        worker_token=lab.core.tables.worker_token("b", "b1", fence),
    )  # fmt: skip
    assert code(lab.send(guarded.connect(JOIN_A), 1, hello)) is ErrorCode.NOT_PERMITTED
    assert isinstance(lab.send(guarded.connect(Grant(Scope.JOIN, "b")), 1, hello), Welcome)


def test_t3_runs_of_others_do_not_exist_for_whoever_may_see_one(guarded: Guarded) -> None:
    wire = guarded.admin(Grant(Scope.ADMIN, "a"))
    lab = guarded.lab
    runs = lab.send(wire, 2, ListRuns())
    assert isinstance(runs, Runs)
    assert [r.run for r in runs.runs] == ["a"]
    status = lab.send(wire, 3, Status())
    assert isinstance(status, ServerStatus)
    assert status.runs == 1
    asks: list[Callable[[str], AnyRequest]] = [
        lambda name: ListRuns(only=name),
        lambda name: Members(run=name),
        lambda name: ShowGeneration(run=name),
        lambda name: CloseRun(run=name),
    ]
    for ask in asks:
        texts = set()
        for name in ("b", "nowhere"):
            reply = lab.send(wire, 4, ask(name))
            assert code(reply) is ErrorCode.UNKNOWN_RUN
            assert isinstance(reply, Error)
            texts.add(reply.message.replace(name, "RUN"))
        assert texts == {"there is no run 'RUN' on this server"}
    assert lab.run("b").live is not None


def test_a_token_of_a_run_shows_that_run(guarded: Guarded) -> None:
    page = guarded.lab.send(guarded.admin(Grant(Scope.READ, "a")), 2, Members(run="a"))
    assert isinstance(page, MemberPage)
    assert len(page.members) == 2


@pytest.mark.parametrize(("scope", "may"), [(Scope.READ, 0), (Scope.JOIN, 0), (Scope.ADMIN, 1)])
def test_t22_only_an_admin_acts_on_runs_from_outside(
    guarded: Guarded, scope: Scope, may: bool
) -> None:
    reply = guarded.lab.send(guarded.admin(Grant(scope)), 2, CloseRun(run="a"))
    if may:
        assert isinstance(reply, Done)
    else:
        assert code(reply) is ErrorCode.NOT_PERMITTED
        assert guarded.lab.run("a").live is not None


def test_b04_a_timeout_names_other_runs_only_to_those_who_may_know(guarded: Guarded) -> None:
    lab = Lab()
    lab.node("x", run="secret", rules=policy(2, join_timeout_s=90)).join()
    nodes = {}
    for name, grant in (("all", EVERYTHING), ("one", Grant(Scope.JOIN, "one"))):
        node = nodes[name] = lab.node(name, run=name, rules=policy(2, join_timeout_s=5))
        lab.core.tables.sessions[node.welcome.session].grant = grant  # type: ignore[union-attr]
        node.join()
    lab.advance(6)
    assert nodes["all"].error is not None
    assert nodes["one"].error is not None
    assert "'secret'" in nodes["all"].error.message
    assert "secret" not in nodes["one"].error.message


# --- certificates -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "node_id", "speaks"),
    [
        (("node-3",), "node-3", True),
        (("Node-3.example",), "node-3.EXAMPLE", True),
        (("node-3",), "node-3-311-a8f0c2", True),
        (("node-3",), "node-31-311-a8f0c2", False),
        (("node-3",), "node-3-311-a8f0c2-1", False),
        (("node-3",), "node-3-x-a8f0c2", False),
        (("node-3",), "node-4", False),
        (("node-3.example",), "node-3", False),
        (("*.example",), "a.example", False),
        (("*",), "a", False),
        (("a", "node-3"), "node-3", True),
        ((), "node-3", False),
    ],
)
def test_t4_a_certificate_speaks_for_the_nodes_it_names(
    names: tuple[str, ...], node_id: str, speaks: bool
) -> None:
    assert speaks_for(names, node_id) is speaks


def test_t4_a_node_with_the_certificate_of_another_is_refused(guarded: Guarded) -> None:
    reply = guarded.hello(guarded.connect(EVERYTHING, ("node-3", "n3")), "a", "node-4")
    assert code(reply) is ErrorCode.UNAUTHENTICATED
    assert isinstance(reply, Error)
    assert reply.message == "the certificate is for node-3, n3, not for node id 'node-4'"
    assert "--rdzv-conf=node_id=NAME" in reply.action
    assert "node-4" not in guarded.lab.run("a").members


def test_t5_a_certificate_takes_over_no_session_of_another_node(guarded: Guarded) -> None:
    """Not even with a right session token: it says whom it is for."""
    lab = guarded.lab
    victim = lab.node("victim", run="a")
    hello = HelloNode(
        run="a", node_id="victim", name="victim", incarnation=victim.incarnation, attempt=9,
        resume=victim.resume_proof,
    )  # fmt: skip
    assert code(lab.send(guarded.connect(EVERYTHING, ("thief",)), 1, hello)) is (
        ErrorCode.UNAUTHENTICATED
    )
    assert not victim.wire.closed


# --- counting and the workers' stores ---------------------------------------------------------


def test_t5_every_guess_is_counted(guarded: Guarded) -> None:
    lab = guarded.lab
    before = lab.core.tables.denied
    guarded.hello(guarded.connect(EVERYTHING, ()), "a")
    lab.apply(lab.core.handle(lab.now, Denied()))
    status = lab.send(lab.admin(), 2, Status())
    assert isinstance(status, ServerStatus)
    assert status.denied == before + 2


def test_t2_only_nodes_addresses_reach_the_workers_store_under_a_token() -> None:
    lab = Lab(Settings(guarded=True))
    rules = policy(2, worker_store="server")
    nodes = [
        lab.node("x", rules=rules, peer="10.0.0.7"),
        lab.node("y", rules=rules, peer="10.0.0.8"),
    ]
    for node in nodes:
        node.join()
    assert nodes[0].joined is not None
    port = nodes[0].joined.store_port
    for peer in ("10.0.0.7", "10.0.0.8"):
        assert not lab.store(port, peer).closed
    for _ in range(3):
        stranger = lab.store(port, "10.0.0.66", hello=False)
        assert stranger.closed
        assert stranger.send(HELLO) == b""
    (line,) = lab.reported("store_client_closed")
    assert line.fields["peer"] == "10.0.0.66"
    assert lab.core.tables.denied == 3


def test_without_a_token_the_workers_store_is_open_to_all() -> None:
    lab = Lab()
    (node,) = lab.world("x", rules=policy(1, worker_store="server"))
    assert node.joined is not None
    assert not lab.store(node.joined.store_port, "10.0.0.66").closed


def test_t2_a_node_that_came_back_from_another_address_brings_its_workers() -> None:
    lab = Lab(Settings(guarded=True))
    (node,) = lab.world("x", rules=policy(1, worker_store="server"))
    assert node.joined is not None
    assert lab.store(node.joined.store_port, "10.0.0.77", hello=False).closed
    node.lose()
    node.peer = "10.0.0.77"
    node.resume()
    assert not lab.store(node.joined.store_port, "10.0.0.77").closed
