"""L4, in short: what once failed does not fail again, seeds and a few hundred made inputs for each target, atheris where
it is installed. `make fuzz` goes on for as long as wanted; tests/e2e/test_fuzzed_server.py has the real server."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdzv_proto import codec
from rdzv_proto.messages import REQUESTS
from tests.fuzz import campaign
from tests.fuzz.campaign import Result
from tests.fuzz.grammar import KINDS, Grammar, Known
from tests.fuzz.scene import Scene
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.watch import Watch, slope
from tests.unit.proto.strategies import structs

MADE = {"dispatch": 60, "store": 60}
"""Inputs by grammar for each target; for the others, which are fast:"""
MADE_FAST = 400

GUIDED_INPUTS = 300

EACH = pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))


@pytest.mark.parametrize(
    ("name", "path"), [pytest.param(n, p, id=p.name) for n, p in campaign.kept()]
)
def test_l4_what_once_failed_does_not_fail_again(name: str, path: Path) -> None:
    TARGETS[name].run(path.read_bytes(), Watch())


@EACH
def test_l4_seeds_and_made_inputs_do_no_harm(target: Target, tmp_path: Path) -> None:
    result = Result(target.name)
    made = (target.make(random.Random(n)) for n in range(MADE.get(target.name, MADE_FAST)))
    assert all(
        campaign.run_one(target, data, result, tmp_path) for data in (*target.seeds(), *made)
    ), result.crashes


@EACH
@settings(max_examples=25, deadline=None)
@given(data=st.binary(max_size=400))
def test_l4_any_bytes_do_no_harm(target: Target, data: bytes) -> None:
    target.run(data, Watch())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_l4_messages_of_any_role_keep_every_rule_of_the_core(data: st.DataObject) -> None:
    """Shrinks to the smallest messages, which the grammar does not."""
    scene = Scene(Watch())
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(KINDS))
        request_id = data.draw(st.integers(1, 6))
        body = codec.encode(request_id, data.draw(structs(kind)))[4:]
        scene.frame(data.draw(st.integers(0, 6)), body)
    scene.settle()


@pytest.mark.skipif(
    campaign.guided_available() is not None,
    reason=f"coverage-guided: {campaign.guided_available()}",
)
def test_l4_coverage_guided_inputs_do_no_harm() -> None:
    result = Result("records")
    campaign.guided(TARGETS["records"], result, seed=1, inputs=GUIDED_INPUTS, seconds=30)
    assert not result.crashes, result.crashes
    assert result.guided > 0


# --- the means themselves ---------------------------------------------------------------------


def test_the_grammar_makes_valid_requests_of_every_kind() -> None:
    grammar = Grammar(random.Random(1), Known(), rubbish=0.0)
    for op, kind in REQUESTS.items():
        for _ in range(30):
            _, message = codec.decode_request(grammar.body(kind))
            assert message.op == op


def test_most_of_what_is_nearly_valid_is_malformed() -> None:
    grammar = Grammar(random.Random(1), Known(), rubbish=0.0)
    malformed = 0
    for _ in range(300):
        try:
            codec.decode_request(grammar.near(grammar.rng.choice(KINDS)))
        except codec.MalformedError:
            malformed += 1
    assert 100 < malformed < 300


def test_a_failure_is_kept_with_its_input_under_the_name_of_its_target(tmp_path: Path) -> None:
    def fails(data: bytes, _: Watch) -> None:
        assert data != b"bad", "it is bad"

    target, result = Target("some", fails, list, lambda rng: rng.randbytes(1)), Result("some")
    assert campaign.run_one(target, b"good", result, tmp_path)
    assert not campaign.run_one(target, b"bad", result, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("some-")
    assert path.read_bytes() == b"bad"
    assert "it is bad" in result.crashes[0]
    assert result.bad == 1


def test_what_takes_too_long_every_time_is_counted_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0

    def time_ns() -> int:
        nonlocal now_ns
        now_ns += 6_000_000
        return now_ns

    monkeypatch.setattr("time.thread_time_ns", time_ns)

    def slow(data: bytes, watch: Watch) -> None:
        watch.call(len, data)

    target = Target("some", slow, list, lambda rng: rng.randbytes(1))
    result = Result("some")
    assert campaign.run_one(target, b"slow", result, tmp_path)
    assert (result.above, result.largest_ms) == (1, 6.0)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_slope_of_a_line_is_its_slope() -> None:
    assert slope([(x, 3.0 + 0.5 * x) for x in (0.0, 1.0, 2.0, 5.0)]) == pytest.approx(0.5)
    assert slope([]) == slope([(1.0, 2.0)]) == 0.0
