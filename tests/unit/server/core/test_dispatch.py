"""Every request of the protocol has somebody who may send it and somebody who answers it."""

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    REQUESTS,
    Authenticate,
    CloseRun,
    Error,
    Finished,
    Join,
    Leave,
    MasterProbe,
    WorkersStarted,
)
from rdzv_server.core import dispatch
from rdzv_server.core.coordinator import WITHOUT_SESSION
from rdzv_server.core.model import Role
from tests.lab import Lab, policy


def test_every_request_may_be_sent_by_somebody() -> None:
    tables = (*WITHOUT_SESSION.values(), *dispatch.HANDLERS.values())
    allowed = {kind for kinds in tables for kind in kinds}
    assert allowed == set(REQUESTS.values()) - {Authenticate}  # done before the core, by the gate


def test_every_role_has_its_table() -> None:
    assert {*WITHOUT_SESSION, *dispatch.HANDLERS} == {None, *Role}
    assert not {*WITHOUT_SESSION} & {*dispatch.HANDLERS}


def test_membership_and_what_agents_report_is_not_for_workers() -> None:
    nodes, workers = dispatch.HANDLERS[Role.NODE], dispatch.HANDLERS[Role.WORKER]
    assert set(nodes) - set(workers) == {
        MasterProbe, WorkersStarted, Join, Finished, Leave, CloseRun,
    }  # fmt: skip
    assert set(workers) <= set(nodes)
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    wire, _ = a.worker(0)
    reply = lab.send(wire, 2, WorkersStarted(fence=a.live_fence(), ranks=[0], pids=[1]))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNSUPPORTED
