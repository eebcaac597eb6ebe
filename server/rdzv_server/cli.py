"""The command `rdzv-server`: flags and environment to a `Config`, errors to one line and an exit code.

Exit codes: 0 after an orderly shutdown; 2 for a wrong flag, a missing extra, an address that cannot
be listened on. Never a traceback for any of these.
"""

import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from rdzv_proto import PORT_DEFAULT, __version__
from rdzv_server.config import Config

EXIT_USAGE = 2

_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|)\s*")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType[float]):
    """`500ms`, `10s`, `2m`, `1h`, or a number of seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """To seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no duration (500ms, 10s, 2m, or seconds)", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


F = TypeVar("F", bound=Callable[..., Any])


def _option(name: str, **attrs: Any) -> Callable[[F], F]:
    """An option with its `RDZV_*` twin, shown in the help and named in errors."""
    variable = "RDZV_" + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, envvar=variable, show_envvar=True, **attrs)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@_option("--host", default="127.0.0.1", help="Address to listen on.")
@_option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT_DEFAULT,
    help="Port to listen on; 0 takes a free one and prints it in the READY line.",
)
@_option(
    "--token-file",
    default="",
    show_default=False,
    metavar="FILE",
    help="Let in only who knows a token of this file; `rdzv token new > FILE` makes one. Several "
    "lines: each is valid. Read again on SIGHUP, and when it changes.",
)
@_option(
    "--tls-cert",
    default="",
    show_default=False,
    metavar="FILE",
    help="Speak TLS 1.3 only, with this certificate chain (PEM). Read again as the token file is.",
)
@_option(
    "--tls-key",
    default="",
    show_default=False,
    metavar="FILE",
    help="Its private key, unless that is in the same file.",
)
@_option(
    "--tls-client-ca",
    default="",
    show_default=False,
    metavar="FILE",
    help="Clients must have a certificate of one of these authorities, for their node id or the host "
    "name that it is made of.",
)
@_option(
    "--http-port",
    default="",
    show_default=False,
    metavar="PORT|off",
    help="Port for /healthz, /readyz and /metrics; 0 takes a free one, off opens none. By default one "
    "above --port. Plain HTTP, read-only, without a token; needs the extra `http`.",
)
@_option(
    "--http-host",
    default="",
    show_default=False,
    help="Address for it; by default that of --host.",
)
@_option(
    "--metrics-runs",
    is_flag=True,
    help="Name runs in /metrics, at most 100 of them. Whoever reaches that port reads the names, with "
    "--token-file too.",
)
@_option(
    "--insecure-no-auth",
    is_flag=True,
    help="Allow --host beyond loopback although nobody has to prove who they are.",
)
@_option(
    "--store-ports",
    default="",
    show_default=False,
    metavar="LOW-HIGH",
    help="Ports for the stores of jobs with worker_store=server, one for each live run; without "
    "it any free ports.",
)
@_option(
    "--tcpstore",
    is_flag=True,
    help="Serve plain TCPStore clients (MASTER_ADDR, --rdzv-backend=c10d) at the main port too, all "
    "in one store, which is emptied when its last client leaves. That protocol cannot authenticate "
    "anybody, so it is refused together with --token-file.",
)
@_option(
    "--data-dir",
    default="",
    show_default=False,
    metavar="DIR",
    help="Keep state in this folder (SQLite): a server that is started again on it goes on where the last "
    "one ended, and training does not notice. By default $STATE_DIRECTORY, else a folder for each address "
    "in ~/.local/state/rdzv; with --port 0 state is in memory.",
)
@_option(
    "--state",
    default="",
    show_default=False,
    metavar="memory|sqlite:PATH|etcd://…",
    help="The same with the file's name, or memory whatever else is set: then a restart ends all generations. "
    "etcd://HOST:PORT[,HOST:PORT…]/PREFIX keeps it in etcd: servers on different machines with the same one are a "
    "cluster. One leads, the others stand by and send clients to it.",
)
@_option(
    "--advertise",
    default="",
    show_default=False,
    metavar="HOST[:PORT]",
    help="With etcd: where clients find this server; by default --host and --port.",
)
@_option(
    "--leader-lease",
    type=Duration(),
    default="5s",
    help="With etcd: a leader that is not heard of for so long is replaced. Whole seconds, 2s to 60s.",
)
@_option(
    "--cluster-id",
    default="rdzv",
    help="With etcd: name of the cluster; servers with another one are refused at this prefix.",
)
@_option(
    "--etcd-ca",
    default="",
    show_default=False,
    metavar="FILE",
    help="Speak TLS with etcd, and trust these authorities (PEM).",
)
@_option(
    "--etcd-cert",
    default="",
    show_default=False,
    metavar="FILE",
    help="Client certificate for etcd (PEM).",
)
@_option(
    "--etcd-key",
    default="",
    show_default=False,
    metavar="FILE",
    help="Its private key, unless that is in the same file.",
)
@_option("--etcd-user", default="", show_default=False, metavar="NAME", help="User of etcd.")
@_option(
    "--etcd-password-file",
    default="",
    show_default=False,
    metavar="FILE",
    help="File with that user's password.",
)
@_option(
    "--force-network-fs",
    is_flag=True,
    help="Keep state on a network file system too. SQLite's locks and shared memory may not hold there: a crash "
    "can lose what was acknowledged.",
)
@_option(
    "--repair",
    is_flag=True,
    help="Keep what is whole of a damaged database, say what is lost, and end.",
)
@_option(
    "--reconnect-grace",
    type=Duration(),
    default="1s",
    help="How long a node whose connection closed may take to come back before it is lost.",
)
@_option(
    "--scale-up-delay",
    type=Duration(),
    default="1s",
    help="Newcomers to a live run are announced after this long without a further one.",
)
@_option(
    "--run-keep",
    type=Duration(),
    default="10m",
    help="How long ended runs stay in the status, and closed ones refuse joins.",
)
@_option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="One line per event on stderr, as key=value pairs or as JSON.",
)
@_option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least important events to log: error, what keeps the server from its work; warning, what somebody should "
    "look at; info, what runs and nodes do; debug, what every connection does.",
)
@_option(
    "--log-level-file",
    default="",
    show_default=False,
    metavar="FILE",
    help="Take the level from this file, one word. Read again on SIGHUP, and when it changes; without the file, or "
    "with nothing in it, --log-level counts.",
)
@_option(
    "--loop",
    type=click.Choice(["auto", "uvloop", "asyncio"]),
    default="auto",
    help="Event loop; auto takes uvloop if it is installed.",
)
@click.version_option(__version__, prog_name="rdzv-server", message="%(prog)s %(version)s")
def command(**options: Any) -> None:
    """Rendezvous server for elastic distributed training.

    Nodes of a training job meet here: start it once, on any machine that all nodes can reach, and
    point torchrun at it:

    \b
    torchrun --rdzv-backend=rdzv --rdzv-endpoint=HOST:29500 --rdzv-id=JOB --nnodes=2:4 train.py

    When it accepts connections it prints one line on stdout, which scripts can wait for:

    \b
    READY host=… port=… http_port=… instance=… epoch=… state=sqlite

    SIGTERM or SIGINT shuts it down in order; a second one at once.
    """
    only_repair = options.pop("repair")
    for name in ("reconnect_grace", "scale_up_delay", "run_keep", "leader_lease"):
        options[f"{name}_s"] = options.pop(name)
    config = Config(**options)
    try:
        config.settings()
        config.state_path()
        config.store_port_range()
        config.check_access()
        config.check_http()
    except ValueError as error:
        _fail(str(error))
    try:
        from rdzv_server.shell.access import AccessError
        from rdzv_server.shell.levels import LevelError
        from rdzv_server.shell.listen import ListenError, is_loopback
        from rdzv_server.shell.main import serve
        from rdzv_server.shell.stored import mend
        from rdzv_server.storage.base import StorageError
    except ModuleNotFoundError as error:
        if error.name != "structlog":
            raise
        _fail('needs the server extra: pip install "rdzv[server]"', sep=" ")
    try:
        if only_repair:
            click.echo(mend(config))
            sys.exit(0)
        guarded = config.token_file or config.insecure_no_auth
        if not guarded and not is_loopback(config.host):
            _fail(
                f"refusing to listen on {config.host}: without authentication whoever reaches "
                "the port can join and end runs. Give --token-file FILE (`rdzv token new > FILE` "
                "makes one), or --insecure-no-auth on a network that you trust."
            )
        sys.exit(serve(config))
    except (ListenError, AccessError, LevelError, StorageError) as error:
        _fail(str(error))
    except ImportError:
        _fail('--loop uvloop: uvloop is not installed: pip install "rdzv[server]"')


def main() -> None:
    """Entry point."""
    _ignore_kubernetes_links()
    command(prog_name="rdzv-server")


def _ignore_kubernetes_links() -> None:
    """A Service called rdzv makes Kubernetes set RDZV_PORT=tcp://… in every pod beside it, and one called
    rdzv-http RDZV_HTTP_PORT."""
    for variable in ("RDZV_PORT", "RDZV_HTTP_PORT"):
        value = os.environ.get(variable, "")
        if "://" in value:
            del os.environ[variable]
            sys.stderr.write(
                f"rdzv-server: ignoring {variable}={value} (set by Kubernetes for a Service; use "
                "enableServiceLinks: false)\n"
            )


def _fail(text: str, sep: str = ": ") -> NoReturn:
    sys.stderr.write(f"rdzv-server{sep}{text}\n")
    sys.exit(EXIT_USAGE)
