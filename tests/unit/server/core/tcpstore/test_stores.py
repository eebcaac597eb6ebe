"""A store for each generation: opened before it forms, closed with it, and nothing survives."""

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import CloseRun, Join, Joined, Policy
from rdzv_server.core.events import ListenerOpened, OpenListener, Received
from rdzv_server.core.sessions import SOCKET_POLL_S
from rdzv_server.core.tcpstore import stores
from rdzv_server.core.tcpstore.model import Stage
from tests.lab import RUN, Lab, Node, policy
from tests.unit.proto.tcpstore_bytes import NO, YES, blob, check, get, set_, wait

NO_PORT = "all 2 ports of --store-ports 40001-40002 are in use"


def served(min_nodes: int = 2, **more: object) -> Policy:
    return policy(min_nodes, worker_store="server", **more)  # type: ignore[arg-type]


def world(lab: Lab, *names: str) -> list[Node]:
    return lab.world(*names, rules=served(len(names)))


def port_of(node: Node) -> int:
    assert node.joined is not None, node.error
    return node.joined.store_port


# --- opening --------------------------------------------------------------------------------------


def test_every_member_is_told_the_port_of_the_store() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    assert port_of(a) == port_of(b) == 40_001
    assert list(lab.listeners.values()) == [40_001]


def test_a_run_that_does_not_ask_for_a_store_gets_none() -> None:
    lab = Lab()
    (a,) = lab.world("a", rules=policy(1))
    assert port_of(a) == 0
    assert not lab.asked


def test_no_port_is_opened_before_the_generation_is_decided() -> None:
    lab = Lab()
    a, b = lab.nodes("a", "b", rules=served(2))
    a.join()
    lab.advance(1)
    assert lab.asked == 0
    b.join()
    assert lab.asked == 1
    assert port_of(b)


def test_no_generation_forms_without_its_port() -> None:
    lab = Lab()
    lab.port_failure = NO_PORT
    a, b = lab.nodes("a", "b", rules=served(2))
    a.join(), b.join()
    lab.advance(0.9)
    assert a.joined is None
    assert lab.asked == 1
    assert NO_PORT in lab.status().reason
    assert lab.run().store is not None
    lab.port_failure = ""
    lab.advance(0.2)
    assert port_of(a) == port_of(b) == 40_001
    assert lab.asked == 2


def test_a_failure_is_tried_again_each_second_and_reported_once() -> None:
    lab = Lab()
    lab.port_failure = NO_PORT
    for node in lab.nodes("a", "b", rules=served(2), lease_s=60):
        node.join()
    lab.advance(5.05)
    assert lab.asked == 6
    (report,) = lab.reported("store_not_opened")
    assert (report.run, report.level, report.fields["reason"]) == (RUN, "error", NO_PORT)
    lab.port_failure = "Too many open files"
    lab.advance(2)
    assert len(lab.reported("store_not_opened")) == 2


def test_a_stall_of_the_server_shortens_no_wait_for_a_port() -> None:
    lab = Lab()
    lab.port_failure = NO_PORT
    for node in lab.nodes("a", "b", rules=served(2)):
        node.join()
    lab.stall(30)
    assert lab.asked == 1
    lab.advance(1)
    assert lab.asked == 2


def test_who_waited_in_vain_for_a_port_is_told_so() -> None:
    lab = Lab()
    lab.port_failure = NO_PORT
    a, b = lab.nodes("a", "b", rules=served(2, join_timeout_s=3))
    a.join(), b.join()
    lab.advance(3.2)
    assert a.code is b.code is ErrorCode.JOIN_TIMEOUT
    assert a.error is not None
    assert NO_PORT in a.error.message
    assert "no generation could form within 3.0 s" in a.error.message
    assert "Joined: a and b" in a.error.message


def test_a_join_without_patience_still_gets_its_port() -> None:
    lab = Lab()
    a = lab.node("a", rules=served(1, join_timeout_s=0)).join()
    assert port_of(a)


def test_a_world_that_waits_long_for_its_port_does_not_keep_the_server_busy() -> None:
    """The port is opened when the state is stored, and a disk may take its time (simulator, durable 435)."""
    lab = Lab(durable=False)
    a = lab.node("a", rules=served(1, join_timeout_s=1))
    ask = Join(policy=a.rules)
    (asked,) = (
        effect
        for effect in lab.core.handle(lab.now, Received(a.wire.conn, 99, ask))
        if isinstance(effect, OpenListener)
    )
    for _ in range(15):
        lab.now += 0.1
        lab.core.tick(lab.now)
    due = lab.core.next_deadline()
    assert due is not None
    assert due > lab.now + 10 * SOCKET_POLL_S, "what is over is not due again and again"
    lab.apply(lab.core.handle(lab.now, ListenerOpened(asked.listener, 40_001)))
    assert any(isinstance(m, Joined) for m in a.wire.replies(99))


def test_a_port_that_is_not_needed_any_more_is_given_back() -> None:
    lab = Lab()
    lab.port_failure = NO_PORT
    a, b = lab.nodes("a", "b", rules=served(2))
    a.join(), b.join()
    store = lab.run().store
    assert store is not None
    b.leave("drained")
    lab.port_failure = ""
    lab.advance(3)
    assert lab.asked == 1, "with one of two nodes there is nothing to open"
    a.leave("drained")
    assert lab.run().store is None
    assert not lab.core.tables.stores
    assert not lab.listeners


def test_a_port_that_comes_too_late_is_closed() -> None:
    lab = Lab()
    lab.listeners[77] = 40_077
    lab.apply(lab.core.handle(lab.now, ListenerOpened(77, 40_077)))
    assert not lab.listeners


def test_a_closed_run_gives_its_port_back() -> None:
    lab = Lab()
    lab.port_failure = NO_PORT
    a = lab.node("a", rules=served(1)).join()
    lab.send(lab.admin(), 2, CloseRun(run=RUN))
    assert a.code is ErrorCode.RUN_CLOSED
    assert not lab.core.tables.stores


@pytest.mark.parametrize("kind", ["Rank0", "etcd", ""])
def test_an_unknown_kind_of_store_is_refused_with_all_known_ones(kind: str) -> None:
    lab = Lab()
    a = lab.node("a", rules=policy(1, worker_store=kind)).join()
    assert a.code is ErrorCode.MALFORMED
    assert a.error is not None
    assert all(repr(name) in a.error.message for name in (kind, "rank0", "server"))


def test_nodes_must_agree_on_the_store() -> None:
    lab = Lab()
    lab.node("a", rules=served(2)).join()
    b = lab.node("b", rules=policy(2)).join()
    assert b.code is ErrorCode.POLICY_MISMATCH
    assert b.error is not None
    assert "'server'" in b.error.message
    assert "'rank0'" in b.error.message


# --- one generation, one store --------------------------------------------------------------------


def test_s11_nothing_of_one_generation_is_visible_in_the_next() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    old = lab.store(port_of(a))
    old.send(set_(b"/default_pg/0//cuda//0", b"i" * 128))
    first = port_of(a)
    b.lose()
    lab.advance(1.2)
    a.join()
    lab.node("b", rules=served(2), incarnation=2).join()
    assert port_of(a) != first
    new = lab.store(port_of(a))
    assert new.send(get(b"/default_pg/0//cuda//0") + check(b"/default_pg/0//cuda//0")) == (
        blob(b"") + NO
    )
    assert old.send(check(b"/default_pg/0//cuda//0")) == YES, "who is left sees the old keys still"


def test_the_port_is_closed_when_the_generation_ends() -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    assert lab.listeners
    a.join()
    assert not lab.listeners


def test_workers_that_are_about_to_be_stopped_keep_their_store_for_a_while() -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    wire = lab.store(port_of(a))
    wire.send(set_(b"/k", b"v"))
    a.join()
    lab.advance(stores.LINGER_S - 0.1)
    assert wire.send(get(b"/k")) == blob(b"v")
    assert [wire.closed] == [False]
    lab.advance(0.2)
    assert wire.closed
    assert not lab.core.tables.store_clients
    assert lab.run().quota.bytes_used == 0


def test_a_stall_of_the_server_shortens_no_farewell() -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    wire = lab.store(port_of(a))
    a.join()
    lab.stall(60)
    lab.advance(1)
    assert not wire.closed
    lab.advance(stores.LINGER_S)
    assert wire.closed


def test_a_store_without_clients_ends_at_once() -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    wire = lab.store(port_of(a))
    a.join()
    assert len(lab.core.tables.stores) == 1
    wire.lose()
    assert not lab.core.tables.stores


def test_a_client_that_comes_after_the_end_is_closed() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    port = port_of(a)
    listener = next(iter(lab.listeners))
    keeper = lab.store(port)
    b.join()
    lab.listeners[listener] = port  # the kernel had accepted it before the listener closed
    late = lab.store(port, hello=False)
    assert late.closed
    assert not keeper.closed


def test_all_nodes_done_ends_the_store_too() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    wire = lab.store(port_of(a))
    a.finish()
    b.finish()
    assert not lab.listeners
    lab.advance(stores.LINGER_S + 0.1)
    assert wire.closed


def test_two_runs_have_two_stores() -> None:
    lab = Lab()
    (a,) = lab.world("a", rules=served(1))
    (b,) = lab.world("b", rules=served(1), run="other")
    one, other = lab.store(port_of(a)), lab.store(port_of(b))
    one.send(set_(b"/k", b"v"))
    assert other.send(get(b"/k")) == blob(b"")


def test_the_keys_of_two_generations_count_together_until_the_older_is_gone() -> None:
    lab = Lab()
    a, b = world(lab, "a", "b")
    old = lab.store(port_of(a))
    old.send(set_(b"/k", b"v" * 100))
    a.join(), b.join()
    new = lab.store(port_of(a))
    new.send(set_(b"/k", b"v" * 50))
    assert lab.run().quota.bytes_used == 154
    lab.advance(stores.LINGER_S + 0.1)
    assert lab.run().quota.bytes_used == 52


def test_a_blocked_worker_is_not_told_of_the_end_but_cut_with_the_rest() -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    wire = lab.store(port_of(a))
    assert wire.send(wait(b"/k")) == b""
    a.join()
    lab.advance(stores.LINGER_S + 0.1)
    assert wire.read() == b""
    assert wire.closed


def test_the_log_tells_when_a_store_opens_and_ends() -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    wire = lab.store(port_of(a))
    wire.send(set_(b"/key", b"secret"))
    a.join()
    (opened,), (closing,) = lab.reported("store_opened"), lab.reported("store_closing")
    assert opened.fields["port"] == closing.fields["port"] == 40_001
    assert (closing.fields["clients"], closing.fields["keys"]) == (1, 1)
    assert "secret" not in str(lab.reports)


def test_a_store_belongs_to_its_generation() -> None:
    lab = Lab()
    a, _ = world(lab, "a", "b")
    generation = lab.run().live
    assert generation is not None
    assert generation.store is not None
    assert generation.store.stage is Stage.OPEN
    assert generation.store.fence == generation.fence
    a.leave("failed")
    assert not lab.listeners
