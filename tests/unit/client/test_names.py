"""How a node calls itself."""

import os
import re
import socket

import pytest

from rdzv_client import names
from rdzv_proto import limits


def test_the_host_name_is_that_of_the_machine() -> None:
    assert names.host_name() == socket.gethostname()[:128]


def test_a_host_name_too_long_is_cut_and_an_empty_one_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 300)
    assert names.host_name() == "h" * limits.NAME_CHARS_MAX
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    assert names.host_name() == "localhost"


def test_made_up_node_ids_start_with_the_name_and_never_repeat() -> None:
    ids = {names.unique_node_id("node-1") for _ in range(100)}
    assert len(ids) == 100, "two agents in containers may have equal names and pids"
    assert all(re.fullmatch(rf"node-1-{os.getpid()}-[0-9a-f]{{6}}", one) for one in ids)


def test_a_made_up_node_id_is_never_too_long() -> None:
    made = names.unique_node_id("n" * 128)
    assert len(made) == limits.NAME_CHARS_MAX
    assert names.checked(made, "node id") == made


@pytest.mark.parametrize("text", ["a", "x" * 128, "with space", "\u00e4\u6f22\U0001f600"])
def test_good_names_pass(text: str) -> None:
    assert names.checked(text, "run id") == text


@pytest.mark.parametrize("text", ["", "x" * 129])
def test_empty_and_overlong_names_are_refused_with_their_length(text: str) -> None:
    with pytest.raises(ValueError, match=rf"run id must have 1 to 128 .* has {len(text)}"):
        names.checked(text, "run id")


@pytest.mark.parametrize("text", ["a\n", "\x00", "a\tb", "\x1b[31m", "a\x7f", "a\x85", "a\u2028"])
def test_control_characters_are_refused_and_shown_harmlessly(text: str) -> None:
    with pytest.raises(ValueError, match="node id must not contain control characters") as caught:
        names.checked(text, "node id")
    assert str(caught.value).isprintable()
