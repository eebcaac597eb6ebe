"""Every request of the protocol has somebody who may send it and somebody who answers it."""

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import REQUESTS, Authenticate, Error, MasterProbe, WorkersStarted
from rdzv_server.core import dispatch
from rdzv_server.core.coordinator import ALLOWED
from tests.lab import Lab, policy


def test_every_request_may_be_sent_by_somebody() -> None:
    allowed = {kind for kinds in ALLOWED.values() for kind in kinds}
    assert allowed == set(REQUESTS.values()) - {Authenticate}  # done before the core, by the gate


def test_every_request_inside_a_run_has_its_handler() -> None:
    assert set(dispatch.HANDLERS) == set(dispatch.OF_NODES)


def test_what_agents_report_is_not_for_workers() -> None:
    assert set(dispatch.OF_NODES) - set(dispatch.OF_WORKERS) == {MasterProbe, WorkersStarted}
    lab = Lab()
    a, _ = lab.world("a", "b", rules=policy(2))
    wire, _ = a.worker(0)
    reply = lab.send(wire, 2, WorkersStarted(fence=a.live_fence(), ranks=[0], pids=[1]))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.UNSUPPORTED
