"""Sentences for people."""

import pytest

from rdzv_server.core import words
from rdzv_server.core.story import STORY_LINES_MAX, Story
from tests.lab import Lab, policy


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], "nobody"),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        ([str(i) for i in range(10)], "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"),
    ],
)
def test_lists_are_read_aloud(items: list[str], text: str) -> None:
    assert words.names(items) == text


@pytest.mark.parametrize(("value", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s")])
def test_durations_are_short(value: float, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("name", "node_id", "text"),
    [("n7", "n7", "n7"), ("n7", "n7-31-ab", "n7-31-ab"), ("n7", "trainer-3", "trainer-3 on n7")],
)
def test_a_node_is_called_by_its_id_and_by_its_name_where_that_does_not_tell_it(
    name: str, node_id: str, text: str
) -> None:
    node = Lab().node(name, node_id=node_id, rules=policy(1)).join()
    member = node.lab.run().members[node_id]
    assert words.node(member) == text
    assert words.node(member, 3) == f"{text} (group rank 3)"


def test_a_story_keeps_its_last_lines() -> None:
    story = Story()
    for i in range(STORY_LINES_MAX + 5):
        story.tell(float(i), f"line {i}")
    assert "line 4" not in str(story).split("\n")[0]
    assert len(str(story).split("\n")) == STORY_LINES_MAX
