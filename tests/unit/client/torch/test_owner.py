"""Who a job under torchrun's default run id belongs to."""

import getpass
import os
import sys

import pytest

from rdzv_client.torch.owner import owner_of_run
from rdzv_proto.messages import Policy

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _torch() -> None:
    pytest.importorskip("torch")


def owner(monkeypatch: pytest.MonkeyPatch, *command: str) -> str:
    monkeypatch.setattr(sys, "argv", ["torchrun", *command])
    return owner_of_run("none")


def test_a_run_with_a_name_has_no_owner() -> None:
    assert owner_of_run("llama") == ""


def test_two_nodes_of_one_job_have_the_same_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    first = owner(monkeypatch, "--nnodes=2", "--node-rank=0", "/data/a/train.py", "--lr", "1")
    second = owner(monkeypatch, "--nnodes", "2", "--node-rank=1", "/mnt/b/train.py", "--lr=1")
    assert first == second
    assert first.startswith(f"{getpass.getuser()}/")


def test_another_script_is_another_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    one = owner(monkeypatch, "--nnodes=2", "train.py")
    assert one != owner(monkeypatch, "--nnodes=2", "eval.py")


def test_another_user_is_another_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = owner(monkeypatch, "train.py")
    monkeypatch.setattr(getpass, "getuser", lambda: "somebody-else")
    assert owner(monkeypatch, "train.py") != mine


def test_a_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert owner(monkeypatch, "train.py").startswith(f"{os.getuid()}/")


def test_a_script_that_is_run_as_a_module_counts_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert owner(monkeypatch, "-m", "pkg.train") != owner(monkeypatch, "-m", "pkg.eval")


def test_a_program_that_launches_agents_itself_is_its_own_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its arguments are not torchrun's, and it must not be told so."""
    monkeypatch.setattr(sys, "argv", ["/opt/launcher.py", "--cluster=x"])
    first = owner_of_run("none")
    monkeypatch.setattr(sys, "argv", ["/opt/other.py", "--cluster=x"])
    assert owner_of_run("none") != first
    assert capsys.readouterr() == ("", "")


def test_the_owner_fits_the_policy_it_is_sent_in(monkeypatch: pytest.MonkeyPatch) -> None:
    text = owner(monkeypatch, "train.py")
    assert Policy(min_nodes=1, max_nodes=1, owner=text).owner == text
    assert len(text) < 100
    assert text.isprintable()
