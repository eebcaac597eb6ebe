"""Views and progress as pushes."""

from rdzv_proto.messages import View, ViewChanged
from tests.lab import Lab, policy


def test_every_member_and_worker_of_the_generation_gets_each_change_of_the_view() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2, 3))
    worker, _ = b.worker()
    lab.node("c", rules=policy(2, 3)).join()
    pushes = [wire.all(ViewChanged) for wire in (a.wire, b.wire, worker)]
    assert [len(p) for p in pushes] == [1, 1, 1]
    assert len({p[0].view for p in pushes}) == 1
    assert (a.view.fence, a.waiting) == (a.live_fence(), 1)
    assert a.view.reason == "c wants in: the participants are told to rejoin"


def test_a_resumed_session_is_told_the_whole_view_at_once() -> None:
    lab = Lab()
    a, b = lab.world("a", "b", rules=policy(2))
    a.lose()
    b.leave("failed", exit_code=2)
    a.resume()
    assert a.welcome is not None
    assert a.welcome.view is not None
    assert a.welcome.view.ended is not None
    assert a.welcome.view.waiting > 0


def test_a_node_that_is_in_no_generation_has_an_empty_view() -> None:
    lab = Lab()
    lab.world("a", "b", rules=policy(2))
    spare = lab.node("c", rules=policy(2)).join()
    spare.resume()
    assert spare.welcome is not None
    assert spare.welcome.view == View()
