"""Every story of this folder, as it is written down."""

from pathlib import Path

import pytest

from tests.scenarios.__main__ import played
from tests.scenarios.player import Player
from tests.scenarios.script import Block, files, parse


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_a_story_goes_as_it_is_written(path: Path) -> None:
    text = path.read_text()
    assert played(text) == text, "if this is right now: python -m tests.scenarios --rewrite"


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_a_story_is_told_before_it_is_played(path: Path) -> None:
    story, blocks = parse(path.read_text())
    assert story
    assert blocks


def test_a_command_that_is_none_is_named() -> None:
    player = Player()
    player.play(Block(["run job min=1"]))
    with pytest.raises(ValueError, match="no such command: 'a dances'"):
        player.play(Block(["at 1s a dances"]))


def test_a_setting_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="no such settings: colour"):
        Player().play(Block(["run job min=1 colour=red"]))


@pytest.mark.parametrize("text", ["# story\n\nrun job min=1", "# story\n\n----\nnothing"])
def test_a_block_needs_commands_and_a_rule(text: str) -> None:
    with pytest.raises(ValueError, match="no commands, or no '----' below them"):
        parse(text)
