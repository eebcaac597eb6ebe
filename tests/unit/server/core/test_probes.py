"""What agents report: who reaches MASTER_ADDR:MASTER_PORT, and the process ids of their workers."""

from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    Address,
    Done,
    Error,
    Fence,
    MasterProbe,
    ProbeStatus,
    WorkersStarted,
)
from rdzv_server.core import probes
from rdzv_server.core.model import Generation
from tests.lab import RUN, Lab, Node, policy

MASTER = Address(host="10.0.0.1", port=43211)


def world(lab: Lab, count: int) -> list[Node]:
    return lab.world(*(f"node-{i}" for i in range(count)), rules=policy(count))


def probe(
    node: Node, error: str = "", after_ms: int = 6000, *, refused: bool = False,
    fence: Fence | None = None,
) -> object:  # fmt: skip
    return node.ask(
        MasterProbe(
            fence=fence or node.live_fence(), master=MASTER, error=error, refused=refused,
            after_ms=after_ms,
        )
    )  # fmt: skip


def generation(lab: Lab) -> Generation:
    found = lab.core.tables.runs[RUN].generation
    assert found is not None
    return found


def reports(lab: Lab, event: str) -> list[tuple[str, object]]:
    return [(r.level, r.fields.get("text")) for r in lab.reports if r.event == event]


def test_a_node_that_cannot_reach_the_master_is_a_warning_and_part_of_the_story() -> None:
    lab = Lab()
    nodes = world(lab, 4)
    assert probe(nodes[3], "timed out") == Done()
    text = "node-3 cannot reach 10.0.0.1:43211 (timed out)"
    assert reports(lab, "master_unreachable") == [("warning", text)]
    assert text in str(lab.core.tables.runs[RUN].story)
    (report,) = [r for r in lab.reports if r.event == "master_unreachable"]
    assert (report.node, report.fence) == ("node-3", str(nodes[3].live_fence()))
    assert report.fields["after_s"] == 6.0


def test_a_port_where_nobody_listens_yet_is_no_warning() -> None:
    lab = Lab()
    nodes = world(lab, 2)
    probe(nodes[1], "nobody listens there yet (60 s)", refused=True)
    assert reports(lab, "master_unreachable") == []
    text = "node-1 reached 10.0.0.1:43211, but nobody listens there yet (60 s)"
    assert reports(lab, "master_not_listening") == [("info", text)]


def test_success_is_noted_without_noise() -> None:
    lab = Lab()
    nodes = world(lab, 2)
    probe(nodes[0], after_ms=800)
    assert reports(lab, "master_reached") == [("debug", "node-0 reached 10.0.0.1:43211")]


def test_the_last_word_of_a_node_counts_and_only_a_change_is_told() -> None:
    lab = Lab()
    nodes = world(lab, 2)
    probe(nodes[1], "timed out", 6000)
    probe(nodes[1], "timed out", 9000)
    assert len(reports(lab, "master_unreachable")) == 1
    probe(nodes[1], "", 12_000)
    assert probes.show(generation(lab)) == [ProbeStatus(node="node-1", after_ms=12_000)]


def test_the_status_has_those_first_that_cannot_reach_it() -> None:
    lab = Lab()
    nodes = world(lab, 3)
    probe(nodes[2], "no route to host", 3000)
    probe(nodes[0], "", 100)
    probe(nodes[1], "timed out", 6000)
    rows = [(row.node, row.error) for row in probes.show(generation(lab))]
    assert rows == [("node-1", "timed out"), ("node-2", "no route to host"), ("node-0", "")]


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert probes.master_text(Address(host="fd00::1", port=5)) == "[fd00::1]:5"


def test_when_all_nodes_are_cut_off_the_log_does_not_have_a_line_for_each() -> None:
    lab = Lab()
    nodes = world(lab, probes.WARNINGS_MAX + 4)
    for node in nodes:
        probe(node, "timed out")
    assert len(reports(lab, "master_unreachable")) == probes.WARNINGS_MAX
    assert len(probes.show(generation(lab))) == len(nodes), "the status has them all"


def test_a_new_generation_begins_without_reports() -> None:
    lab = Lab()
    nodes = world(lab, 2)
    probe(nodes[1], "timed out")
    nodes[1].ask(WorkersStarted(fence=nodes[1].live_fence(), ranks=[1], pids=[77], world_size=2))
    old = nodes[1].live_fence()
    for node in nodes:
        node.join()
    assert nodes[1].live_fence() != old
    now = generation(lab)
    assert (probes.show(now), now.worker_pids, now.worker_world) == ([], {}, 0)
    late = probe(nodes[1], "timed out", fence=old)
    assert isinstance(late, Error)
    assert late.code == ErrorCode.STALE_GENERATION


def test_a_standby_cannot_report() -> None:
    lab = Lab()
    nodes = world(lab, 2)
    other = Node(lab, "other", rules=policy(2))
    other.join()
    reply = probe(other, "timed out", fence=nodes[0].live_fence())
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.NOT_A_MEMBER


def test_the_processes_of_the_workers_are_kept_by_session() -> None:
    lab = Lab()
    nodes = world(lab, 2)
    for number, node in enumerate(nodes):
        ranks = [2 * number, 2 * number + 1]
        pids = [4_000_000 + number, 900 + number]
        ask = WorkersStarted(fence=node.live_fence(), ranks=ranks, pids=pids, world_size=4)
        assert node.ask(ask) == Done()
    now = generation(lab)
    (first, second) = (p.session_id for p in now.participants)
    assert now.worker_pids == {first: {4_000_000: 0, 900: 1}, second: {4_000_001: 2, 901: 3}}
    assert now.worker_world == 4


def test_ranks_and_processes_of_unequal_number_are_refused() -> None:
    lab = Lab()
    nodes = world(lab, 2)
    reply = nodes[0].ask(WorkersStarted(fence=nodes[0].live_fence(), ranks=[0, 1], pids=[5]))
    assert isinstance(reply, Error)
    assert reply.code == ErrorCode.MALFORMED
    assert generation(lab).worker_pids == {}
