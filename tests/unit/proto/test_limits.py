"""The limits go together: what must fit into a frame does, and the reasons given are true."""

import pytest

from rdzv_proto import codec, limits
from rdzv_proto.framing import LENGTH_BYTES
from rdzv_proto.messages import (
    Address,
    Ended,
    Fence,
    HelloNode,
    HelloWorker,
    Join,
    KvMultiGet,
    KvSet,
    KvValues,
    KvWait,
    MemberPage,
    MemberStatus,
    Message,
    Policy,
    Resume,
    Runs,
    RunStatus,
)

HUGE = (1 << 63) - 1
WIDE = "\U0001f600"
"""The widest character: four bytes."""
NAME = WIDE * limits.NAME_CHARS_MAX
TEXT = WIDE * limits.TEXT_CHARS_MAX


def size(message: Message) -> int:
    """Bytes of the body, which is what the limits are about."""
    return len(codec.encode(HUGE, message)) - LENGTH_BYTES


def join(names: list[str]) -> Join:
    policy = Policy(
        min_nodes=10_000, max_nodes=10_000, node_unit=10_000, worker_store=NAME, owner=TEXT,
        join_timeout_ms=limits.DURATION_MS_MAX, last_call_timeout_ms=limits.DURATION_MS_MAX,
        below_min="wait",
    )  # fmt: skip
    return Join(
        policy=policy,
        last=Fence(HUGE, HUGE),
        rank_hint=HUGE,
        address=Address(host=NAME, port=65535, explicit=True),
        expected_nodes=names,
    )


def test_every_limit_is_a_positive_integer() -> None:
    values = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert len(values) >= 17
    assert all(type(value) is int and value > 0 for value in values.values())


def test_frame_limits_grow_with_trust() -> None:
    assert (
        limits.FRAME_BYTES_MAX_HELLO
        < limits.FRAME_BYTES_MAX_CONTROL
        < limits.FRAME_BYTES_MAX
        < limits.FRAME_BYTES_MAX_CLIENT
        < 1 << 32
    )


@pytest.mark.parametrize("kind", [HelloNode, HelloWorker])
def test_the_largest_hello_fits_before_anybody_has_a_name(kind: type[Message]) -> None:
    fields: dict[str, object] = {
        "run": NAME, "node_id": NAME, "name": NAME, "incarnation": bytes(16), "attempt": HUGE,
        "lease_ms": limits.DURATION_MS_MAX, "resume": Resume(HUGE, HUGE, bytes(64)),
        "client": NAME, "fence": Fence(HUGE, HUGE), "rank": HUGE, "worker_token": bytes(64),
        "protocol_max": limits.PROTOCOL_VERSION_MAX,
    }  # fmt: skip
    hello = kind(**{name: fields[name] for name in kind.__struct_fields__})
    assert size(hello) <= limits.FRAME_BYTES_MAX_HELLO


def test_expected_nodes_of_14_characters_just_fill_a_control_frame() -> None:
    names = ["n" * 14] * limits.EXPECTED_NODES_MAX
    usual = Join(policy=Policy(min_nodes=1000, max_nodes=4096), expected_nodes=names)
    assert 0.9 * limits.FRAME_BYTES_MAX_CONTROL < size(usual) <= limits.FRAME_BYTES_MAX_CONTROL


def test_the_largest_join_without_expected_nodes_fits_a_control_frame() -> None:
    assert size(join([])) <= limits.FRAME_BYTES_MAX_CONTROL // 4


def test_the_largest_value_fits_under_the_longest_key() -> None:
    key = WIDE * limits.KEY_CHARS_MAX
    value = bytes(limits.VALUE_BYTES_MAX)
    request = KvSet(fence=Fence(HUGE, HUGE), key=key, value=value)
    assert size(request) <= limits.FRAME_BYTES_MAX


def test_the_keys_of_torchs_rank_exchange_fit_for_the_largest_world() -> None:
    keys = [f"torchelastic/assigned_ranks/{i}" for i in range(limits.MEMBERS_PER_RUN_MAX)]
    assert len(keys) <= limits.KEYS_PER_REQUEST_MAX
    for request in (
        KvMultiGet(fence=Fence(HUGE, HUGE), keys=keys, timeout_ms=60_000),
        KvWait(fence=Fence(HUGE, HUGE), keys=keys, timeout_ms=60_000),
    ):
        assert size(request) <= limits.FRAME_BYTES_MAX


def test_the_role_infos_of_the_largest_world_fit_what_a_client_accepts() -> None:
    reply = KvValues(values=[bytes(500)] * limits.MEMBERS_PER_RUN_MAX)
    assert size(reply) <= limits.FRAME_BYTES_MAX_CLIENT
    one = KvValues(values=[bytes(limits.VALUE_BYTES_MAX)] * 8)
    assert size(one) <= limits.FRAME_BYTES_MAX_CLIENT


def test_a_page_of_usual_members_stays_below_128_kib() -> None:
    name = "trainer-0123.llama.svc.cluster.local"
    row = MemberStatus(
        node_id=f"{name}-12345-abcdef", name=name, state="participant", group_rank=9_999,
        incarnation_age_ms=10**8, heard_ms_ago=5_000,
        address=Address(host=name, port=43210), peer="10.100.200.201:54321",
    )  # fmt: skip
    page = MemberPage(
        fence=Fence(HUGE, HUGE), members=[row] * limits.MEMBERS_PER_PAGE_MAX, total=10_000
    )
    assert 64 * 1024 < size(page) <= 128 * 1024


def test_the_largest_pages_fit_what_a_client_accepts() -> None:
    row = MemberStatus(
        node_id=NAME, name=NAME, state=NAME, group_rank=HUGE,
        incarnation_age_ms=limits.DURATION_MS_MAX, heard_ms_ago=limits.DURATION_MS_MAX,
        address=Address(host=NAME, port=65535, explicit=True), peer=NAME,
    )  # fmt: skip
    members = MemberPage(members=[row] * limits.MEMBERS_PER_PAGE_MAX)
    assert size(members) <= limits.FRAME_BYTES_MAX_CLIENT
    run = RunStatus(
        run=NAME, phase=NAME, fence=Fence(HUGE, HUGE), policy=join([]).policy,
        waiting_for=[NAME] * 8, reason=TEXT,
        ended=Ended(kind=NAME, reason=TEXT, node_id=NAME, exit_code=HUGE),
    )  # fmt: skip
    runs = Runs(runs=[run] * limits.RUNS_PER_PAGE_MAX, more=True)
    assert size(runs) <= limits.FRAME_BYTES_MAX_CLIENT


def test_keys_of_a_run_are_enough_for_its_largest_world() -> None:
    assert limits.KV_KEYS_PER_RUN_MAX >= 10 * limits.MEMBERS_PER_RUN_MAX
    assert limits.KV_BYTES_PER_RUN_MAX >= 16 * limits.VALUE_BYTES_MAX
    assert limits.KEYS_PER_REQUEST_MAX <= limits.KV_KEYS_PER_RUN_MAX


def test_a_session_can_never_fill_the_window_of_recorded_replies_by_waiting() -> None:
    assert limits.PARKED_PER_SESSION_MAX <= limits.REPLIES_RECORDED_MAX


def test_numbers_fit_signed_64_bits_and_sums_of_durations_too() -> None:
    assert limits.GENERATION_MAX == HUGE
    assert 1000 * limits.DURATION_MS_MAX < HUGE
