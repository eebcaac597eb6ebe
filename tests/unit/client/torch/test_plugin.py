"""The entry point: light, harmless, and clear about what is missing."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdzv_client.torch import plugin
from rdzv_proto import __version__


def python(code: str, *path: Path) -> "subprocess.CompletedProcess[str]":
    """Run code in a process of its own, with folders first on its path."""
    folders = [*map(str, path), *filter(None, sys.path)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ
    )


def broken_msgspec(folder: Path, source: str) -> Path:
    (folder / "msgspec").mkdir()
    (folder / "msgspec" / "__init__.py").write_text(source)
    return folder


CREATE = """
import sys
from unittest.mock import MagicMock
elastic = "torch.distributed.elastic"
agent = f"{elastic}.agent"
processes = f"{elastic}.multiprocessing"
for name in ("torch", "torch.distributed", elastic, agent, f"{agent}.server",
             f"{agent}.server.local_elastic_agent", processes, f"{processes}.api",
             f"{processes}.errors", f"{elastic}.rendezvous"):
    sys.modules[name] = MagicMock()  # torch itself takes seconds to import, and is not the point
from rdzv_client.torch import plugin
try:
    plugin.get_handler_factory()(None)
except RuntimeError as error:
    print(error, "|", error.__cause__, error.__suppress_context__)
"""


def test_loading_it_imports_neither_torch_nor_msgspec() -> None:
    """torch loads it in every torchrun, whatever the backend."""
    run = python(
        "import sys; from rdzv_client.torch import plugin; plugin.get_handler_factory();"
        "print(sorted({'torch', 'msgspec', 'msgpack', 'click', 'socket', 'asyncio', "
        "'rdzv_client.engine'} & set(sys.modules)))"
    )
    assert (run.stdout.strip(), run.stderr) == ("[]", "")


def test_loading_it_works_where_msgspec_is_broken(tmp_path: Path) -> None:
    folder = broken_msgspec(tmp_path, "raise ImportError('broken')")
    run = python("import rdzv_client.torch.plugin as p; p.get_handler_factory()", folder)
    assert (run.returncode, run.stderr) == (0, "")


def test_the_factory_takes_no_arguments_and_returns_the_creator() -> None:
    assert plugin.get_handler_factory() is plugin.create_handler


def test_torch_finds_it_under_its_name() -> None:
    found = importlib.metadata.entry_points(group="torchrun.handlers", name="rdzv")
    assert {entry.value for entry in found} == {"rdzv_client.torch.plugin:get_handler_factory"}


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("raise ModuleNotFoundError(\"No module named 'msgspec'\", name='msgspec')", "'msgspec'"),
        ("from msgspec import _core", "'msgspec'"),
        ("raise ImportError('libx.so: cannot open', name='msgspec._core')", "'msgspec._core'"),
    ],
)
def test_a_broken_msgspec_is_a_runtime_error_that_names_it(
    tmp_path: Path, source: str, module: str
) -> None:
    run = python(CREATE, broken_msgspec(tmp_path, source))
    text, _, cause = run.stdout.strip().partition(" | ")
    assert f"the torchrun backend 'rdzv' (package rdzv {__version__}) cannot be loaded" in text
    assert f"module {module} is missing or broken" in text
    assert "pip install --force-reinstall rdzv" in text
    assert cause == "None True", "ours is the last line of the traceback"


def test_an_import_error_without_a_name_does_not_read_as_none(tmp_path: Path) -> None:
    run = python(CREATE, broken_msgspec(tmp_path, "raise ImportError('built for another Python')"))
    assert "built for another Python" in run.stdout
    assert "None is missing" not in run.stdout
