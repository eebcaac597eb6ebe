"""L4, live and in short: a server that is sent whatever the grammar makes. `make fuzz-live` goes on for longer."""

from tests.e2e.conftest import Cluster
from tests.fuzz import live


def test_l4_a_server_that_is_sent_whatever_the_grammar_makes_has_no_fault_and_harms_nobody(
    cluster: Cluster,
) -> None:
    seen = live.fuzz(cluster, seconds=60.0 if cluster.full else 3.0, inputs=10**9, seed=1)
    print(seen.line)
    assert seen.told["sent"] > 100
    assert seen.told["answered"] > 0
    assert not seen.errors, seen.errors[: live.ERRORS_SHOWN]
