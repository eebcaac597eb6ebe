"""Lines that nobody can forge (T16)."""

import json
import shlex

import pytest

from rdzv_server.core.events import Report
from rdzv_server.shell import log

EVIL = (
    'a\nlevel=error event=forged', "a\r\nb", "\x1b[2J\x1b[31mred", "abc\u202edcb", "x\u2028y",
    'quote" level=error', "a=b event=forged", "back\\slash\n", "\x00", "\udcff", "tab\there",
)  # fmt: skip


@pytest.fixture(autouse=True)
def restored() -> None:
    import structlog

    structlog.reset_defaults()


def written(capsys: pytest.CaptureFixture[str], form: log.Format, text: str) -> str:
    log.set_up(form, "info")
    log.write(Report("happened", run=text, node=text, fields={"reason": text}))
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    return err


@pytest.mark.parametrize("text", EVIL)
def test_t16_a_clients_text_stays_one_value_of_one_line(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    line = written(capsys, "text", text)
    fields = dict(part.split("=", 1) for part in shlex.split(line))
    assert fields["event"] == "happened"
    assert fields["level"] == "info"


@pytest.mark.parametrize("text", EVIL)
def test_t16_json_lines_stay_one_object(capsys: pytest.CaptureFixture[str], text: str) -> None:
    fields = json.loads(written(capsys, "json", text))
    assert fields["event"] == "happened"
    assert fields["run"] == fields["node"] == fields["reason"]


def test_t16_a_long_text_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(written(capsys, "text", "x" * 100_000)) < 4 * log.TEXT_CHARS_MAX


def test_plain_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert "node=Größe-漢字" in written(capsys, "text", "Größe-漢字")
