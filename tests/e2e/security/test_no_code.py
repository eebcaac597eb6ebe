"""T7 and B40 (c): what arrives is never executed, and comes back byte for byte."""

import ast
import base64
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import inspect

from rdzv_client import Client
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import REQUESTS, Barrier, Error, Goodbye, KvSet
from tests.e2e.conftest import Cluster
from tests.e2e.kit.hostile import Raw, world
from tests.e2e.kit.wait import until

ROOT = Path(__file__).parents[3]
PRODUCT = ("server", "client", "proto")

FORBIDDEN_MODULES = {
    "pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle",
    "yaml", "msgpack", "code", "codeop", "runpy", "imp",
}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "execfile", "input"}
FORBIDDEN_METHODS = {
    ("pickle", "loads"), ("torch", "load"), ("os", "system"), ("os", "popen"), ("subprocess", "getoutput"),
}  # fmt: skip
HOOKS = {"ext_hook", "dec_hook", "object_hook", "object_pairs_hook", "shell"}
"""Arguments that let data choose code."""


class Canary:
    """Leaves a mark when somebody unpickles it."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self._path,)


@pytest.fixture
def canary(cluster: Cluster) -> Iterator[Path]:
    """A folder that must never come to be."""
    path = Path(tempfile.gettempdir()) / f"canary-{cluster.marker}"
    yield path
    left = path.exists()
    if left:
        path.rmdir()
    assert not left, "something was executed"


def pickles(path: Path) -> list[bytes]:
    return [pickle.dumps(Canary(path), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]


def texts(path: Path) -> list[str]:
    """What an evaluator, a template, a shell or a decoder would act upon, and names may be."""
    return [
        f"__import__('os').mkdir('{path}')",
        f"{{{{ ''.__class__.__mro__ }}}} $(mkdir {path})",
        f"`mkdir {path}`;mkdir {path}|| & %s %n {{0}}",
        base64.b64encode(pickle.dumps(Canary(path), 4)).decode()[:128],
    ]


def test_the_canary_sings_when_it_is_unpickled(canary: Path) -> None:
    """T7: the test itself works."""
    for data in pickles(canary):
        pickle.loads(data)
        assert canary.is_dir()
        canary.rmdir()


def test_b40c_pickles_and_code_as_names_and_values_come_back_as_they_are(
    cluster: Cluster, canary: Path
) -> None:
    """T7: key, value, node name, run id, barrier name and payload; read by all members and by status."""
    server = cluster.server("--tcpstore")
    for run in texts(canary):
        assert len(run) <= 128
        clients = [
            Client(server.endpoint, run=run, min_nodes=2, name=run, node_id=f"{run[:120]}#{i}")
            for i in range(2)
        ]
        try:
            threads = [threading.Thread(target=client.join, args=(30,)) for client in clients]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(40)
            _exchange(clients, run, pickles(canary))
            shown = _status(server.endpoint, run) + _status(server.endpoint)
            assert run in shown
            assert not canary.exists()
        finally:
            for client in clients:
                client.close()


def _exchange(clients: list[Client], text: str, payloads: list[bytes]) -> None:
    """Each member writes what all read, and they meet with it."""
    first, second = (client.generation for client in clients)
    assert first is not None
    assert second is not None
    for data in payloads:
        first.kv.set(text, data)
        assert second.kv.get(text, timeout=10) == data
        clients[0].kv.set(text, data)
        assert clients[1].kv.get(text, timeout=10) == data
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(second.barrier, text, payload=data, timeout=20)
            assert list(first.barrier(text, payload=data, timeout=20).payloads) == [data, data]
            assert list(other.result().payloads) == [data, data]


def _status(endpoint: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "rdzv_client", "--server", endpoint, "status", *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return shown.stdout


def test_b40c_a_pickle_is_no_name(cluster: Cluster, canary: Path) -> None:
    """T7: each of them holds control characters, which names must not have."""
    server = cluster.server()
    for data in pickles(canary):
        name = data.decode("latin-1")
        for field in ("run", "node_id", "name", "client"):
            with Raw(server) as raw:
                reply = raw.hello("r", "n", **{field: name})  # type: ignore[arg-type]
                assert isinstance(reply, Error), field
                assert reply.code == ErrorCode.MALFORMED
        with world(server, f"p{len(data)}", 1) as ((node,), (told,)):
            ask = Barrier(fence=told.fence, name=name, timeout_ms=100)
            assert node.refused(ask).code == ErrorCode.MALFORMED
            node.ask(KvSet(fence=told.fence, key=name[:1024], value=data))
    assert "name=" in server.log


def test_a_pickle_instead_of_a_frame_is_no_message(cluster: Cluster, canary: Path) -> None:
    """T7: also on the port of TCPStore clients, as in the reports of others."""
    server = cluster.server("--tcpstore")
    for data in pickles(canary):
        with Raw(server) as raw:
            raw.send(data)
            assert not raw.end(10)
        with Raw(server).admin() as raw:
            raw.send(len(data).to_bytes(4, "big") + data)
            said = raw.next()
            assert said is not None
            assert isinstance(said[1], Goodbye | Error)
        with Raw(server) as raw:
            hello = b"\x00\xce\xf7\x85\x3c"
            size = len(data).to_bytes(8, "little")
            raw.send(hello + b"\x01" + size + data + size + data + b"\x03" + size + data)
            got = b""
            raw.sock.settimeout(10)
            while len(got) < 8 + len(data):
                got += raw.sock.recv(65536)
            assert got == size + data
    until(lambda: server.log_lines("foreign_protocol"), 5, "the server saw them")


# --- the source -----------------------------------------------------------------------------------


def _modules() -> list[Path]:
    found = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(found) > 50
    return found


def _imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def _faults(tree: ast.AST) -> list[str]:
    found = [f"imports {name}" for name in sorted(_imports(tree) & FORBIDDEN_MODULES)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name) if name in FORBIDDEN_CALLS:
                found.append(f"calls {name}")
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                if (owner, name) in FORBIDDEN_METHODS:
                    found.append(f"calls {owner}.{name}")
            case _:
                pass
        found += [f"passes {word.arg}" for word in node.keywords if word.arg in HOOKS]
    return found


def test_nothing_in_the_product_can_execute_what_arrives() -> None:
    """T7: no pickle, no marshal, no eval, no hooks; by the source, of all three packages."""
    faults = {
        str(path.relative_to(ROOT)): found
        for path in _modules()
        if (found := _faults(ast.parse(path.read_text())))
    }
    assert not faults


def _types_inside(of: inspect.Type) -> Iterator[inspect.Type]:
    """A type and all it is made of."""
    yield of
    for name in of.__struct_fields__:
        value = getattr(of, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, inspect.Field):
                part = part.type
            if isinstance(part, inspect.Type):
                yield from _types_inside(part)


def test_the_messages_have_no_field_of_any_type_and_no_unbounded_one() -> None:
    """T7, T9: every field is typed and bounded, so that nothing is built that nobody asked for."""
    loose = (
        inspect.AnyType, inspect.DictType, inspect.FloatType, inspect.ExtType, inspect.RawType,
        inspect.CustomType,
    )  # fmt: skip
    for op, kind in REQUESTS.items():
        for part in _types_inside(inspect.type_info(kind)):
            assert not isinstance(part, loose), (op, part)
            if isinstance(part, inspect.StrType | inspect.BytesType | inspect.ListType):
                assert part.max_length is not None, (op, part)
