"""The page that Prometheus reads."""

import asyncio
import re
import shutil
import subprocess
import threading
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rdzv_server.http import metrics
from rdzv_server.http.buckets import COMMIT_S, Buckets
from rdzv_server.http.metrics import FRESH_S, Renderer, render
from rdzv_server.http.numbers import RunNumbers, Snapshot
from tests.lab import Lab, policy
from tests.unit.server.http.kit import sources

LABELS = {
    "version", "instance", "storage", "state", "phase", "kind", "event", "outcome", "le", "run",
}  # fmt: skip
"""All that there are (T18): none is a node, a key or a secret."""


def full() -> Snapshot:
    """With everything that can be shown."""
    taken = sources().take()
    commits = Buckets(COMMIT_S)
    commits.observe(0.003)
    named = {"llama": RunNumbers(3, 2, 1), 'a"b\\c': RunNumbers(1, 0, 0)}
    return replace(taken, commits=commits, named=named, storage="sqlite")


def values(page: bytes) -> dict[str, float]:
    """Samples by name and labels, as they are written."""
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_promtool_has_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool, which is not installed (Debian package prometheus)")
    ran = subprocess.run(
        (promtool, "check", "metrics"), check=False, input=render(full()), capture_output=True
    )
    assert (ran.stdout + ran.stderr).decode() == ""
    assert ran.returncode == 0


def test_every_family_has_a_help_text_and_its_unit_in_its_name() -> None:
    for family in text_string_to_metric_families(render(full()).decode()):
        assert family.documentation.endswith("."), family.name
        assert re.match("(rdzv|process)_[a-z_]+$", family.name), family.name
        assert not re.search("_(ms|s|count|kib)$", family.name), family.name
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
    page = render(full()).decode()
    assert len(re.findall("^# HELP ", page, re.MULTILINE)) == len(
        re.findall("^# TYPE ", page, re.MULTILINE)
    )


def test_t18_no_label_is_a_node_a_key_or_a_secret_and_only_the_runs_can_be_named() -> None:
    lab = Lab()
    lab.world("node-of-alice", "node-of-bob", rules=policy(2, 2), run="secret-project")
    page = render(sources(lab).take()).decode()
    assert "secret-project" not in page
    assert "alice" not in page
    assert "run=" not in page
    families = text_string_to_metric_families(render(full()).decode())
    assert {label for f in families for s in f.samples for label in s.labels} <= LABELS


def test_t18_a_server_with_thousands_of_nodes_shows_as_many_series_as_an_empty_one() -> None:
    lab = Lab()
    for number in range(20):
        lab.world("a", "b", rules=policy(2, 2), run=f"run-{number}")
    assert len(values(render(sources(lab).take()))) == len(values(render(sources().take())))


@pytest.mark.parametrize("insecure", [False, True])
def test_t1_whether_anybody_may_join_is_a_metric(insecure: bool) -> None:
    assert values(render(sources(insecure=insecure).take()))["rdzv_insecure"] == insecure


def test_the_state_is_one_of_all_states() -> None:
    found = values(render(sources().take()))
    states = {name: value for name, value in found.items() if name.startswith("rdzv_state")}
    assert states.pop('rdzv_state{state="serving"}') == 1
    assert len(states) == 4
    assert not any(states.values())


def test_numbers_are_where_people_look_for_them() -> None:
    found = values(render(replace(full(), requests=41, connections=7, epoch=1_795_000_000_123)))
    assert found["rdzv_requests_total"] == 41
    assert found["rdzv_connections"] == 7
    assert found["rdzv_epoch"] == 1_795_000_000_123
    assert found['rdzv_commit_seconds_bucket{le="0.005"}'] == 1
    assert found['rdzv_commit_seconds_bucket{le="0.0025"}'] == 0
    assert found["rdzv_commit_seconds_count"] == 1
    assert found['rdzv_run_standbys{run="llama"}'] == 1
    assert found['rdzv_run_members{run="a\\"b\\\\c"}'] == 1
    assert found["process_resident_memory_bytes"] > 1e6


async def test_a_page_is_rendered_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def note(snapshot: Snapshot) -> bytes:
        seen.append(threading.get_ident())
        return render(snapshot)

    monkeypatch.setattr(metrics, "render", note)
    renderer = Renderer(sources().take)
    assert b"rdzv_info" in await renderer.page()
    renderer.close()
    assert len(seen) == 1
    assert seen[0] != threading.get_ident()


async def test_all_who_ask_within_a_second_share_one_page() -> None:
    now, taken = 100.0, 0

    def take() -> Snapshot:
        nonlocal taken
        taken += 1
        return sources().take()

    renderer = Renderer(take, lambda: now)
    pages = await asyncio.gather(*(renderer.page() for _ in range(50)))
    assert len(set(pages)) == taken == 1
    now += FRESH_S
    await renderer.page()
    assert taken == 2
    renderer.close()


async def test_who_goes_away_does_not_take_the_page_from_the_others() -> None:
    renderer = Renderer(sources().take)
    first = asyncio.ensure_future(renderer.page())
    second = asyncio.ensure_future(renderer.page())
    await asyncio.wait([first], timeout=0)
    first.cancel()
    assert b"rdzv_info" in await second
    renderer.close()


async def test_a_page_that_failed_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(snapshot: Snapshot) -> bytes:
        raise OSError("no thread, no memory")

    renderer = Renderer(sources().take)
    with monkeypatch.context() as patched:
        patched.setattr(metrics, "render", fail)
        with pytest.raises(OSError, match="no thread"):
            await renderer.page()
    assert b"rdzv_info" in await renderer.page()
    renderer.close()
