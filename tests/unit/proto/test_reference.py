"""The page `PROTOCOL.md` is what the tables say."""

import functools
from pathlib import Path

import pytest

from rdzv_proto import PORT_DEFAULT, limits, reference
from rdzv_proto.errors import ERRORS
from rdzv_proto.messages import REQUESTS
from tests.unit.proto.strategies import ALL


@functools.cache
def the_page() -> str:
    """Made once: it parses the sources."""
    return reference.page()


def test_the_page_is_fresh() -> None:
    assert the_page() == reference.PAGE.read_text(encoding="utf-8"), "run `make reference`"


def test_every_operation_has_a_section_with_all_its_fields() -> None:
    sections = the_page().split("\n### ")
    for op, kind in ALL.items():
        (section,) = [s for s in sections if s.split("\n", 1)[0] == op]
        for field in kind.__struct_fields__:
            assert f"| `{field}` |" in section


@pytest.mark.parametrize("op", REQUESTS)
def test_every_request_says_its_answer_and_whether_it_is_done_once(op: str) -> None:
    section = the_page().split(f"\n### {op}\n")[1].split("\n### ")[0]
    assert f"Answered by `{REQUESTS[op].answer}` or `error`" in section
    assert ("*once*" in section) == REQUESTS[op].recorded


def test_every_error_is_in_the_table() -> None:
    lines = the_page().splitlines()
    for row in ERRORS.values():
        (line,) = [line for line in lines if f"({row.label}) | {row.code.name} |" in line]
        assert row.meaning in line
        assert row.action in line
        assert row.retry.value in line


def test_every_limit_is_in_the_table_with_its_value_and_reason() -> None:
    lines = the_page().splitlines()
    for name in (n for n in vars(limits) if n.isupper()):
        (line,) = [line for line in lines if line.startswith(f"| {name} |")]
        _, _, value, reason, _ = line.split("|")
        assert value.strip() == f"{getattr(limits, name):,}"
        assert reason.strip().endswith((".", ")"))


def test_the_page_names_port_and_preamble() -> None:
    assert str(PORT_DEFAULT) in the_page()
    assert "`RDZV`" in the_page()


def test_rows_of_every_table_have_as_many_cells_as_its_head() -> None:
    width = 0
    for line in the_page().replace("\\|", "").splitlines():
        if line.startswith("|"):
            width = width or line.count("|")
            assert line.count("|") == width, line
        else:
            width = 0


def test_links_lead_to_sections() -> None:
    page = the_page()
    titles = {line[4:].lower() for line in page.splitlines() if line.startswith("### ")}
    links = {part.split(")")[0] for part in page.split("](#")[1:]}
    assert links
    assert links <= titles


def test_check_passes_on_a_fresh_page_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "PROTOCOL.md"
    page.write_text(the_page(), encoding="utf-8")
    monkeypatch.setattr(reference, "PAGE", page)
    assert reference.main(["--check"]) == 0


@pytest.mark.parametrize("stale", [True, False])
def test_check_fails_on_a_stale_or_missing_page_and_says_what_to_do(
    stale: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "PROTOCOL.md"
    if stale:
        page.write_text("old")
    monkeypatch.setattr(reference, "PAGE", page)
    assert reference.main(["--check"]) == 1
    assert "make reference" in capsys.readouterr().err
    assert page.exists() == stale


def test_without_check_the_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PAGE", tmp_path / "PROTOCOL.md")
    assert reference.main([]) == 0
    assert reference.PAGE.read_text(encoding="utf-8") == the_page()
