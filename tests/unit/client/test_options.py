"""What a node wants: checked once, turned into messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_client import names
from rdzv_client.options import NodeOptions
from rdzv_proto import codec, limits
from rdzv_proto.messages import Address, Fence, HelloNode, Join, Policy
from tests.unit.proto.strategies import often


@pytest.fixture(autouse=True)
def _no_node_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDZV_NODE_ID", raising=False)


def test_defaults_make_a_world_of_one_fixed_size() -> None:
    options = NodeOptions("llama", min_nodes=3)
    assert options.most_nodes == options.max_nodes == 3
    assert options.name == names.host_name()
    assert options.node_id.startswith(options.name)


def test_every_process_is_another_incarnation_with_another_node_id() -> None:
    one, two = NodeOptions("llama"), NodeOptions("llama")
    assert len(one.incarnation) == 16
    assert one.incarnation != two.incarnation
    assert one.node_id != two.node_id


def test_a_node_id_can_be_given_and_else_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RDZV_NODE_ID", "from-env")
    assert NodeOptions("llama").node_id == "from-env"
    assert NodeOptions("llama", node_id="given").node_id == "given"


def test_a_bad_node_id_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDZV_NODE_ID", "a\nb")
    with pytest.raises(ValueError, match="node id"):
        NodeOptions("llama")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"run": ""}, "run id"),
        ({"run": "a\nb"}, "run id"),
        ({"run": "r" * 129}, "run id"),
        ({"name": "a\0"}, "node name"),
        ({"node_id": "x" * 129}, "node id"),
        ({"min_nodes": 0}, "min_nodes"),
        ({"min_nodes": -1, "max_nodes": 2}, "min_nodes"),
        ({"min_nodes": 3, "max_nodes": 2}, "3 <= 2"),
        ({"max_nodes": limits.MEMBERS_PER_RUN_MAX + 1}, "max_nodes"),
        ({"max_nodes": 0}, "max_nodes"),
        ({"node_unit": 0}, "node_unit"),
        ({"max_nodes": 4, "node_unit": 5}, "node_unit"),
        ({"rank": -1}, "rank"),
        ({"below_min": "retry"}, "below_min"),
        ({"expected_nodes": ("a", "")}, "expected_nodes"),
        ({"expected_nodes": ("a\n",)}, "expected_nodes"),
        ({"expected_nodes": ("n",) * (limits.EXPECTED_NODES_MAX + 1)}, "expected_nodes"),
        ({"join_timeout_s": -1}, "join_timeout_s"),
        ({"last_call_timeout_s": -0.1}, "last_call_timeout_s"),
        ({"connect_timeout_s": float("nan")}, "connect_timeout_s"),
        ({"reconnect_timeout_s": float("inf")}, "reconnect_timeout_s"),
        ({"join_timeout_s": 1e10}, "join_timeout_s"),
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": -5}, "lease_s"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        NodeOptions(**{"run": "llama", **wrong})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "good",
    [
        {"min_nodes": limits.MEMBERS_PER_RUN_MAX},
        {"min_nodes": 2, "max_nodes": 4, "node_unit": 4},
        {"rank": 0},
        {"join_timeout_s": 0, "last_call_timeout_s": 0, "reconnect_timeout_s": 0},
        {"expected_nodes": ("n",) * limits.EXPECTED_NODES_MAX},
        {"lease_s": 0.05},
    ],
)
def test_values_at_their_bounds_are_taken(good: dict[str, Any]) -> None:
    NodeOptions("llama", **good)


def test_a_hello_introduces_this_process() -> None:
    options = NodeOptions("llama", node_id="b-1", name="b", lease_s=2.5)
    assert options.hello() == HelloNode(
        run="llama",
        node_id="b-1",
        name="b",
        incarnation=options.incarnation,
        lease_ms=2500,
        client=names.CLIENT,
    )


def test_a_join_carries_the_policy_and_what_this_node_wishes() -> None:
    options = NodeOptions(
        "llama",
        min_nodes=2,
        max_nodes=4,
        node_unit=2,
        rank=1,
        expected_nodes=("a", "b"),
        join_timeout_s=1.5,
        last_call_timeout_s=0.25,
        below_min="wait",
        owner="me",
    )
    address = Address(host="10.0.0.1", port=1234)
    assert options.join(Fence(1, 2), address) == Join(
        policy=Policy(
            min_nodes=2,
            max_nodes=4,
            node_unit=2,
            owner="me",
            join_timeout_ms=1500,
            last_call_timeout_ms=250,
            below_min="wait",
        ),
        last=Fence(1, 2),
        rank_hint=1,
        address=address,
        expected_nodes=["a", "b"],
    )


def test_a_timeout_given_with_the_join_wins() -> None:
    options = NodeOptions("llama", join_timeout_s=600)
    assert options.join(None, Address(), 2.0).policy.join_timeout_ms == 2000
    assert options.join(None, Address(), 0).policy.join_timeout_ms == 0
    assert options.join(None, Address()).policy.join_timeout_ms == 600_000


@often
@given(
    run=st.text(max_size=130),
    name=st.text(max_size=130),
    min_nodes=st.integers(-1, 20_000),
    join_timeout_s=st.floats(-1, 1e10),
    expected=st.lists(st.text(max_size=4), max_size=3),
)
def test_whatever_the_options_accept_the_server_can_read(
    run: str, name: str, min_nodes: int, join_timeout_s: float, expected: list[str]
) -> None:
    try:
        options = NodeOptions(
            run,
            name=name,
            node_id=name,
            min_nodes=min_nodes,
            join_timeout_s=join_timeout_s,
            expected_nodes=tuple(expected),
        )
    except ValueError:
        return
    for message in (options.hello(), options.join(None, Address())):
        assert codec.decode_request(codec.encode(1, message)[4:]) == (1, message)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_s": float("inf")},
        {"lease_s": 1e12},
        {"worker_store": "w" * 129},
        {"worker_store": "rank\x000"},
        {"owner": "o" * 1025},
        {"rank": 1 << 63},
    ],
)
def test_options_that_no_server_accepts_are_refused_here(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        sent(NodeOptions("llama", **wrong))


def test_a_negative_patience_of_one_join_is_refused_or_counts_as_none() -> None:
    options = NodeOptions("llama")
    codec.decode_request(codec.encode(1, options.join(None, Address(), -1.0))[4:])


def sent(options: NodeOptions) -> None:
    """Read the messages as a server would."""
    for message in (options.hello(), options.join(None, Address())):
        codec.decode_request(codec.encode(1, message)[4:])
