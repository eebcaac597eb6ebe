"""What people see of rdzv in torchrun's output without configuring anything."""

import logging
from collections.abc import Iterator

import pytest

from rdzv_client.torch import logs

RDZV = logging.getLogger("rdzv")


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = (RDZV.handlers[:], RDZV.level, RDZV.propagate)
    monkeypatch.delenv(logs.VARIABLE, raising=False)
    RDZV.handlers[:] = [logging.NullHandler()]
    RDZV.setLevel(logging.NOTSET)
    yield
    RDZV.handlers[:], RDZV.propagate = before[0], before[2]
    RDZV.setLevel(before[1])


def set_up(*root: logging.Handler) -> None:
    """As in a process whose root logger has these handlers: those of pytest are put aside."""
    handlers = logging.getLogger().handlers
    before = handlers[:]
    handlers[:] = root
    logs.set_up()
    handlers[:] = before


def added() -> list[logging.Handler]:
    return [h for h in RDZV.handlers if not isinstance(h, logging.NullHandler)]


def test_lines_go_to_stderr_with_time_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    set_up()
    RDZV.info("rdzv[llama] 1/2 nodes joined")
    RDZV.debug("not this")
    err = capsys.readouterr().err
    assert err.endswith("] INFO rdzv[llama] 1/2 nodes joined\n")
    assert err.startswith("[20")
    assert err.count("\n") == 1


def test_a_line_appears_once_though_torch_sets_up_the_root_later(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up()
    root = logging.StreamHandler()
    logging.getLogger().addHandler(root)
    RDZV.warning("once")
    logging.getLogger().removeHandler(root)
    assert capsys.readouterr().err.count("once") == 1


def test_two_handlers_in_one_process_do_not_double_the_lines() -> None:
    set_up()
    set_up()
    assert len(added()) == 1


def test_a_program_that_configured_logging_is_left_alone() -> None:
    set_up(logging.NullHandler())
    assert added() == []
    assert RDZV.level == logging.NOTSET
    assert RDZV.propagate


def test_a_program_that_configured_this_logger_is_left_alone() -> None:
    own = logging.StreamHandler()
    RDZV.addHandler(own)
    set_up()
    assert added() == [own]
    assert RDZV.level == logging.NOTSET


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("debug", logging.DEBUG),
        ("INFO", logging.INFO),
        ("Warning", logging.WARNING),
        ("error", logging.ERROR),
        ("nonsense", logging.INFO),
        ("", logging.INFO),
    ],
)
def test_the_level_can_be_chosen(monkeypatch: pytest.MonkeyPatch, value: str, level: int) -> None:
    monkeypatch.setenv(logs.VARIABLE, value)
    set_up()
    assert RDZV.level == level


def test_without_a_choice_it_is_info() -> None:
    set_up()
    assert RDZV.level == logging.INFO
