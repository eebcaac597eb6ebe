"""Finding NCCL, and minting with it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rdzv_client import nccl_library
from rdzv_client.errors import MintFailed
from tests import nccl_here

ID = bytes(range(1, 129))
SIGNED = tuple(b - 256 if b > 127 else b for b in ID)

needs_nccl = pytest.mark.skipif(not nccl_here.path(), reason=nccl_here.MISSING)


# --- what mint= may return --------------------------------------------------------------------


@pytest.mark.parametrize(
    "minted",
    [
        ID,
        bytearray(ID),
        memoryview(ID),
        list(ID),
        SIGNED,
        SimpleNamespace(as_bytes=ID),
        SimpleNamespace(as_bytes=lambda: ID),
        type("Uid", (), {"__bytes__": lambda self: ID})(),
        nccl_library._UniqueId.from_buffer_copy(ID),
    ],
)
def test_every_form_in_which_libraries_give_an_id(minted: object) -> None:
    assert nccl_library.to_raw(minted) == ID


@pytest.mark.parametrize(
    ("minted", "text"),
    [
        (ID[:-1], "127 bytes"),
        ([1, 2, 3], "3 bytes"),
        (bytes(128), "zeros"),
        (128, "int"),
        ("x" * 128, "str"),
        (None, "NoneType"),
    ],
)
def test_b35_anything_else_is_refused_in_words(minted: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        nccl_library.to_raw(minted)


# --- where it is looked for -------------------------------------------------------------------


def found(
    environ: dict[str, str], modules: dict[str, object] | None = None
) -> list[tuple[str, str]]:
    rows = nccl_library.candidates(environ, modules or {})
    return [(how, getattr(what, "where", what)) for how, what in rows]


def library_in(folder: Path) -> str:
    folder.mkdir(parents=True)
    path = folder / "libnccl.so.2"
    path.write_bytes(b"no library")
    return str(path)


def test_a_chosen_path_is_tried_before_anything_else() -> None:
    rows = found({"VLLM_NCCL_SO_PATH": "/b.so", "RDZV_NCCL_LIB": "/a.so"})
    assert rows[:2] == [("RDZV_NCCL_LIB", "/a.so"), ("VLLM_NCCL_SO_PATH", "/b.so")]


def test_a_wheel_is_tried_before_what_the_loader_finds_and_that_before_prefixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = library_in(tmp_path / "site" / "nvidia" / "nccl" / "lib")
    prefix = library_in(tmp_path / "cuda" / "lib64")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    for name in [m for m in sys.modules if m == "nvidia" or m.startswith("nvidia.")]:
        monkeypatch.delitem(sys.modules, name)
    paths = [path for _, path in found({"CUDA_HOME": str(tmp_path / "cuda")})]
    assert paths.index(wheel) < paths.index("libnccl.so.2") < paths.index(prefix)


def test_a_torch_with_nccl_inside_is_used_if_it_is_loaded() -> None:
    torch = SimpleNamespace(
        _C=SimpleNamespace(_nccl_unique_id=lambda: ID),
        cuda=SimpleNamespace(
            nccl=SimpleNamespace(version=lambda: (2, 28, 9), unique_id=lambda: ID)
        ),
    )
    (source,) = [s for how, s in nccl_library.candidates({}, {"torch": torch}) if how == "torch"
                 and not isinstance(s, str)]  # fmt: skip
    assert source.version == 22809
    assert source.mint() == ID


def test_a_torch_without_nccl_is_passed_by() -> None:
    torch = SimpleNamespace(_C=SimpleNamespace())
    assert not [
        s for _, s in nccl_library.candidates({}, {"torch": torch}) if not isinstance(s, str)
    ]


def test_mapped_libraries_are_read_from_the_kernels_list(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 00000000 08:01 11 /usr/lib/libc.so.6\n"
        "7f01-7f02 r--p 00000000 08:01 12 /opt/my env/libnccl.so.2\n"
        "7f02-7f03 r-xp 00000000 08:01 12 /opt/my env/libnccl.so.2\n"
        "7f03-7f04 rw-p 00000000 00:00 0 [heap]\n"
    )
    assert nccl_library.mapped(str(maps)) == ["/opt/my env/libnccl.so.2"]
    assert nccl_library.mapped(str(tmp_path / "nothing")) == []


def test_the_error_names_everything_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        nccl_library,
        "candidates",
        lambda: iter([("wheel", "/none/libnccl.so.2"), ("loader", "libnone.so.9")]),
    )
    with pytest.raises(MintFailed) as caught:
        nccl_library.find()
    for part in ("wheel: /none/libnccl.so.2", "loader: libnone.so.9", "cannot open shared object"):
        assert part in caught.value.message
    assert "mint=" in caught.value.action


def test_a_library_that_is_not_nccl_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = "libc.so.6"
    with pytest.raises(MintFailed, match=r"ncclGetUniqueId"):
        nccl_library.find(libc)


@pytest.mark.parametrize(("value", "is_set"), [(None, False), ("", False), ("10.0.0.1:5000", True)])
def test_nccl_comm_id_is_seen(value: str | None, is_set: bool) -> None:
    environ = {} if value is None else {"NCCL_COMM_ID": value}
    assert nccl_library.comm_id_set(environ) is is_set


# --- with the real thing ----------------------------------------------------------------------


def play(code: str, **environ: str) -> str:
    """In a process of its own: NCCL raises limits and keeps threads."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"RDZV_NCCL_LIB": nccl_here.path(), "NCCL_SOCKET_IFNAME": "lo", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_nccl
def test_a_real_library_mints_ids_that_differ() -> None:
    code = """
from rdzv_client import nccl_library as n
s = n.find()
a, b = n.to_raw(s.mint()), n.to_raw(s.mint())
print(len(a), a != b, s.version, n.version_here() == s.version, int.from_bytes(a[8:10], "little"))
"""
    size, differ, version, same, family = play(code).split()
    assert (size, differ, same, family) == ("128", "True", "True", "2")
    assert int(version) > 20_000


@needs_nccl
def test_nothing_is_loaded_to_tell_the_version() -> None:
    code = "from rdzv_client import nccl_library as n; print(n.version_here(), n.mapped())"
    assert play(code) == "0 []"


@needs_nccl
def test_an_interface_that_does_not_exist_is_told_in_nccls_words() -> None:
    code = """
from rdzv_client import nccl_library as n
try:
    n.find().mint()
except n.MintFailed as error:
    print(error.message)
"""
    said = play(code, NCCL_SOCKET_IFNAME="=none9")
    assert "ncclGetUniqueId" in said
    assert "code " in said
