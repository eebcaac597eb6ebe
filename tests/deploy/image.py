"""Build the image and run it, locked up, as deploy/README.md says.

python -m tests.deploy.image [--folder FOLDER]
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from rdzv_proto import PORT_DEFAULT, __version__
from tests.deploy import DEPLOY, DOCKERFILE, ROOT, command, run
from tests.deploy.debian import VERSION_LINE, debian, do, hold, play, since, wheels
from tests.e2e.kit.wait import until

NEEDS = {
    "buildah": "buildah",
    "podman": "podman",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
}
"""Tools, with the Debian package that has each."""

MOUNTED = "/etc/rdzv"
"""Where a container finds its secrets."""

PROBE = "import sys, urllib.request as u; u.urlopen('http://' + ''.join(sys.argv[1:]), timeout=5)"
"""As Kubernetes asks: good is an answer 200, without any credential."""

STOP_S = 10
"""What an engine waits by default before it kills."""


class Engine:
    """buildah and podman on a storage of their own, in a network of their own."""

    def __init__(self, folder: Path, network: str) -> None:
        storage = ("--root", str(folder / "root"), "--runroot", str(folder / "run"))
        self.buildah = ("buildah", *storage)
        # `ip netns exec` would hide the control groups.
        self.inside = ("nsenter", f"--net=/run/netns/{network}")
        runtime = ("--runtime", "runc", "--cgroup-manager", "cgroupfs")
        self.podman = (*self.inside, "podman", "--log-level", "fatal", *storage, *runtime)

    def run(self, *words: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The words of `podman run`, as locked up as it goes."""
        return (
            *self.podman, "run", "--read-only", "--cap-drop=ALL",
            "--security-opt", "no-new-privileges",
            # Without these podman asks for more than a container of CI may raise.
            "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000",
            *options, *words,
        )  # fmt: skip


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """An engine; its network, containers and images are gone afterwards."""
    network = f"rdzv-deploy-{os.getpid()}"
    do("ip", "netns", "add", network)
    made = Engine(folder, network)
    try:
        do(*made.inside, "ip", "link", "set", "lo", "up")
        yield made
    finally:
        run(*made.podman, "rm", "--all", "--force", "--time", "0")
        run(*made.buildah, "rm", "--all")
        run(*made.buildah, "rmi", "--all", "--force")
        run("umount", folder / "root" / "overlay")
        run("ip", "netns", "del", network)


def build(folder: Path, made: Engine) -> None:
    """The image `localhost/rdzv`, on a base of Debian packages."""
    debian(folder / "base.tar")
    base = do(*made.buildah, "from", "scratch")
    do(*made.buildah, "add", "--quiet", base, folder / "base.tar", "/")
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    do(*made.buildah, "config", "--env", path, base)
    python = do(*made.buildah, "run", "--isolation", "chroot", base, "python", "-c", VERSION_LINE)
    do(*made.buildah, "commit", "--quiet", base, "localhost/base")
    have = wheels(folder, python)
    start = time.monotonic()
    do(
        *made.buildah, "bud", "--isolation", "chroot", "--format", "docker", "--no-cache",
        "--ignorefile", DEPLOY / "Dockerfile.dockerignore", "--file", DOCKERFILE,
        "--build-arg", "BASE_IMAGE=localhost/base", "--build-arg", f"VERSION={__version__}",
        "--volume", f"{have}:/mnt:ro", "--build-arg", "PIP_FIND_LINKS=/mnt",
        "--build-arg", "PIP_NO_INDEX=1", "--tag", "localhost/rdzv", ROOT,
    )  # fmt: skip
    took = since(start)
    size, of_base = (
        int(do(*made.podman, "image", "inspect", "--format", "{{.Size}}", name)) / 1e6
        for name in ("localhost/rdzv", "localhost/base")
    )
    print(
        f"image: Python {python}, built in {took}, {size:.0f} MB: "
        f"base {of_base:.0f} MB + {size - of_base:.0f} MB"
    )


def check(folder: Path) -> None:
    """Build it, look at it, run it, ask for its health, stop it."""
    with engine(folder / "engine") as made:
        build(folder, made)
        (about,) = json.loads(do(*made.podman, "image", "inspect", "localhost/rdzv"))
        config = about["Config"]
        hold(config["User"] == "65532:65532", "its user is 65532:65532")
        label = config["Labels"]["org.opencontainers.image.version"]
        hold(label == __version__, f"its label tells version {label}")
        hold(about.get("Healthcheck") or config.get("Healthcheck"), "it has a health check")

        bare = run(*made.run("--rm", "--network", "none", "localhost/rdzv"))
        refused = bare.returncode == 2 and "refusing to listen on 0.0.0.0" in bare.stderr
        hold(refused, "a bare run refuses, with exit code 2")
        find = "for name in gcc cc make hatchling; do ! command -v $name || exit 1; done"
        look = ("--rm", "--network", "none", "--entrypoint", "sh", "localhost/rdzv", "-c", find)
        hold(run(*made.run(*look)).returncode == 0, "it has no build tools")

        check_container(made, "flag", PORT_DEFAULT, ("localhost/rdzv", "--insecure-no-auth"))
        variables = ("--env", "RDZV_INSECURE_NO_AUTH=1", "--env", "RDZV_PORT=29600")
        check_container(made, "variable", 29600, (*variables, "localhost/rdzv"))
        check_guarded(made, folder / "secret")


def check_guarded(made: Engine, secret: Path) -> None:
    """With a token and a certificate, mounted as the README says."""
    secret.mkdir(exist_ok=True)
    told = guard(secret)
    volume = ("--volume", f"{secret}:{MOUNTED}:ro")
    inside = [f"--env={key}={value}" for key, value in told.items()]
    outside = {key: value.replace(MOUNTED, str(secret)) for key, value in told.items()}
    outside = {k: v for k, v in outside.items() if k not in ("RDZV_TLS_CERT", "RDZV_TLS_KEY")}
    check_container(
        made, "secret", PORT_DEFAULT, (*volume, *inside, "localhost/rdzv"), outside, secret
    )


def guard(secret: Path) -> dict[str, str]:
    """Token, certificate and key for user 65532, and the variables that name them in a container."""
    authority = trustme.CA()
    mine = authority.issue_cert("rdzv.test")
    files = {
        "token": do(command("rdzv"), "token", "new").encode(),
        "ca.crt": authority.cert_pem.bytes(),
        "tls.crt": mine.cert_chain_pems[0].bytes(),
        "tls.key": mine.private_key_pem.bytes(),
    }
    for name, content in files.items():
        put(secret / name, content)
    return {
        "RDZV_TOKEN_FILE": f"{MOUNTED}/token",
        "RDZV_TLS_CERT": f"{MOUNTED}/tls.crt",
        "RDZV_TLS_KEY": f"{MOUNTED}/tls.key",
        "RDZV_TLS_CA": f"{MOUNTED}/ca.crt",
        "RDZV_TLS_SERVER_NAME": "rdzv.test",
    }


def put(path: Path, content: bytes) -> None:
    """A file for the container's user, in place of one that was there."""
    part = path.with_suffix(".part")
    part.touch(0o400)
    part.write_bytes(content)
    os.chown(part, 65532, 65532)
    part.rename(path)


def check_exchange(made: Engine, name: str, ask: Callable[[], int], token: Path) -> None:
    """A new token in the mounted folder, and a reload."""
    old = token.read_bytes()
    put(token, do(command("rdzv"), "token", "new").encode())
    hold(ask() == 1, "the new token is not good yet")
    do(*made.podman, "kill", "--signal", "HUP", name)
    until(lambda: ask() == 0, 10, "the new token is good")
    put(token, old)
    hold(ask() == 1, "after a reload the new token is good, and the old one is not")
    do(*made.podman, "kill", "--signal", "HUP", name)
    until(lambda: ask() == 0, 10, "the old token is good")


def check_container(
    made: Engine,
    name: str,
    port: int,
    words: tuple[str, ...],
    environment: dict[str, str] | None = None,
    secret: Path | None = None,
) -> None:
    """Run one with a published port, look at it from outside, and stop it."""
    print(f"container told by a {name}:")
    ports = ("-p", f"127.0.0.1::{port}", "-p", f"127.0.0.1::{port + 1}")
    options = ("--detach", "--name", name, "--network", "bridge", *ports)
    start = time.monotonic()
    do(*made.run(*words, options=options))

    def logs() -> str:
        ran = run(*made.podman, "logs", name)
        return ran.stdout + ran.stderr

    until(lambda: "READY " in logs(), 20, f"READY in {logs()}")
    hold(True, f"ready after {since(start)}")
    outside, http = (do(*made.podman, "port", name, str(each)) for each in (port, port + 1))

    def ask() -> int:
        words = (*made.inside, command("rdzv"), "--server", outside, "status")
        return run(*words, environment=environment).returncode

    hold(ask() == 0, f"answers at the published port {outside}")
    for path in ("/healthz", "/readyz", "/metrics"):
        hold(run(*made.inside, sys.executable, "-c", PROBE, http, path).returncode == 0, path)
    if secret is not None:
        check_exchange(made, name, ask, secret / "token")

    def health() -> int:
        return run(*made.podman, "healthcheck", "run", name).returncode

    hold(health() == 0, "the health check is good")
    look = "id -u; ! touch /touched 2>/dev/null && cat /proc/1/status"
    seen = do(*made.podman, "exec", name, "sh", "-c", look)
    hold(seen.startswith("65532\n"), "runs as 65532 and cannot write to its root")
    hold("CapBnd:\t0000000000000000" in seen and "NoNewPrivs:\t1" in seen, "has no privilege")
    do(*made.podman, "kill", "--signal", "STOP", name)
    hold(health() == 1, "the health check of a frozen server is bad")
    do(*made.podman, "kill", "--signal", "CONT", name)

    start = time.monotonic()
    do(*made.podman, "stop", "--time", str(STOP_S), name)
    took = time.monotonic() - start
    code = do(*made.podman, "inspect", "--format", "{{.State.ExitCode}}", name)
    hold(code == "0" and took < STOP_S, f"stopped in {took:.2f} s with exit code {code}")
    hold("Traceback" not in logs(), "no fault in its log")


if __name__ == "__main__":
    sys.exit(play("image", check, NEEDS))
