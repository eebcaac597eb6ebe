"""The state of the source itself: lengths, mirrored tests, named rules, nothing left over."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_proto.messages import PUSHES, REPLIES, REQUESTS

ROOT = Path(__file__).parent.parent
PRODUCT = ("proto/rdzv_proto", "server/rdzv_server", "client/rdzv_client")

MODULE_LINES_MAX = 380
"""At most about 300 with docstrings and imports; a module that needs more has two jobs."""

FUNCTION_LINES_MAX = 70

TABLES = {"proto/rdzv_proto/messages.py", "proto/rdzv_proto/errors.py"}
"""Data, not code: one class per message, one row per error."""

NOT_MIRRORED = {
    "server/rdzv_server/core/model.py": "data without rules",
    "server/rdzv_server/core/events.py": "data without rules",
    "server/rdzv_server/core/tcpstore/model.py": "data without rules",
    "server/rdzv_server/core/tables.py": "the outbox and tables of every core test",
    "server/rdzv_server/core/roster.py": "recounted by invariants.py after every step of every test",
    "server/rdzv_server/core/refusal.py": "an exception; every refusal is tested where it is raised",
    "server/rdzv_server/core/story.py": "test_words.py",
    "server/rdzv_server/core/outside.py": "each event is tested with what it brings about",
    "server/rdzv_server/core/totals.py": "data without rules; the counts are tested in tests/unit/server/http",
    "server/rdzv_server/shell/doer.py": "test_server.py, over real sockets",
    "server/rdzv_server/core/due.py": "each deadline is tested with what it ends",
    "server/rdzv_server/shell/peer.py": "test_server.py, over real sockets",
    "server/rdzv_server/shell/store_side.py": "test_store_connection.py, over real sockets",
    "server/rdzv_server/shell/main.py": "test_cli.py and tests/e2e, as a process",
    "server/rdzv_server/shell/timer.py": "test_server.py, over real sockets",
    "server/rdzv_server/shell/opened.py": "test_cli.py and tests/e2e, as a process",
    "server/rdzv_server/shell/process.py": "test_cli.py and tests/e2e, as a process",
    "server/rdzv_server/shell/standing_by.py": "tests/e2e/test_standby.py, with a real etcd",
    "server/rdzv_server/key_files.py": "shell/test_tls.py and storage/etcd/test_place.py",
    "server/rdzv_server/storage/lead.py": "etcd/test_election.py",
    "server/rdzv_server/storage/etcd/cluster.py": "tests/e2e/test_standby.py, with a real etcd",
    "server/rdzv_server/shell/loop.py": "test_cli.py, with and without uvloop",
    "server/rdzv_server/shell/limiter.py": "test_server.py",
    "server/rdzv_server/config.py": "test_cli.py",
    "client/rdzv_client/session_events.py": "data without rules",
    "client/rdzv_client/torch/handler.py": "tests/e2e, under real agents",
    "client/rdzv_client/torch/export.py": "tests/e2e/test_plugin.py, with real workers",
}
"""Modules without a test module of their own, and where they are tested instead."""

RULES = [f"s{n}" for n in range(1, 35)] + [
    "l1",
    "l2",
    "l3",
    "l4",
    "l5",
    "l6",
    "l7",
    "l8",
    "l9",
    "l10",
    "l11",
    "l12",
]
THREATS = [n for n in range(1, 25) if n != 17]
"""Rows of the threat table whose subject exists: there are no pages for people yet."""

CASES = (
    "b01", "b02", "b03", "b04", "b06", "b07", "b08", "b10", "b11", "b12", "b13", "b14", "b16", "b17", "b18",
    "b19", "b22", "b23", "b24", "b26", "b27", "b28", "b29", "b33", "b34", "b35", "b36", "b38", "b39", "b40", "b43",
    "b44",
)  # fmt: skip

AT_THE_ROOT = {
    ".ci", ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile",
    "README.md", "SECURITY.md", "client", "deploy", "proto", "pyproject.toml", "server", "tests",
}  # fmt: skip


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks; in an unpacked source archive, all files."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout")
    return [ROOT / name for name in listed if (ROOT / name).exists()]


def product_modules() -> list[Path]:
    return [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_modules_have_one_job() -> None:
    long = {name(p): n for p in product_modules() if (n := len(p.read_text().splitlines()))
            > MODULE_LINES_MAX and name(p) not in TABLES}  # fmt: skip
    assert not long


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{name(path)}:{node.name}"
        for path in [*product_modules(), *tracked("tests/**/*.py", "deploy/**/*.py")]
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not long


def test_every_module_has_its_tests() -> None:
    missing = []
    for path in product_modules():
        package, _, rest = name(path).partition("/")[2].partition("/")
        if path.name.startswith("__") or name(path) in NOT_MIRRORED:
            continue
        part = package.removeprefix("rdzv_")
        folder = ROOT / "tests" / "unit" / part / Path(rest).parent
        if not list(folder.glob(f"test_{path.stem}*.py")):
            missing.append(name(path))
    assert not missing
    assert all((ROOT / path).exists() for path in NOT_MIRRORED)


def test_every_rule_and_case_has_a_test_that_names_it() -> None:
    names = {node.name for path in (ROOT / "tests").rglob("test_*.py") for node in functions(path)}
    e2e = {
        node.name
        for path in (ROOT / "tests" / "e2e").rglob("test_*.py")
        for node in functions(path)
    }
    rules = [rule for rule in RULES if not any(n.startswith(f"test_{rule}_") for n in names)]
    cases = [case for case in CASES if not any(n.startswith(f"test_{case}") for n in e2e)]
    assert not rules
    assert not cases


def test_every_threat_has_a_test_that_names_it_in_its_name_or_first_words() -> None:
    named: set[int] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in functions(path):
            if node.name.startswith("test_"):
                title = re.match(r"test_t(\d+)_", node.name)
                row = re.match(r"T(\d+)\b", ast.get_docstring(node) or "")
                named |= {int(found[1]) for found in (title, row) if found}
    assert not set(THREATS) - named


def test_every_operation_is_in_the_protocol_page() -> None:
    page = (ROOT / "proto" / "PROTOCOL.md").read_text()
    assert all(f"### {op}\n" in page for op in (*REQUESTS, *REPLIES, *PUSHES))


def test_nothing_unfinished_is_left_in_the_source() -> None:
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
    found = [
        f"{name(path)}: {line.strip()}"
        for path in tracked("*.py", "*.md", "Makefile", ".ci/run", "deploy/*")
        for line in path.read_text().splitlines()
        if marks.search(line)
    ]
    assert not found


def test_nothing_speaks_of_one_machine_or_of_package_hosts() -> None:
    words = ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "py" + "pi.org", "python" + "hosted",
             "npm" + "js.org", "debian" + ".org")  # fmt: skip
    found = [
        f"{name(path)}: {word}"
        for path in tracked()
        if path.suffix != ".json"
        for word in words
        if word in path.read_text(errors="replace")
    ]
    assert not found


def test_the_root_holds_only_what_belongs_there() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= AT_THE_ROOT


def test_the_documents_name_every_setting() -> None:
    from rdzv_client.torch.conf import KEYS
    from rdzv_server.cli import command

    readme = (ROOT / "README.md").read_text()
    assert not [key for key in KEYS if f"`{key}`" not in readme]
    help_text = " ".join(p.help or "" for p in command.params if hasattr(p, "help"))
    assert help_text
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()
