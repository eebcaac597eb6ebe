"""The command `rdzv`: look at a rendezvous server and its runs, and meet at them from scripts.

Exit codes: 0 good; 1 the server cannot be reached, is none, or refuses; 2 wrong usage. Errors are one
line on stderr, never a traceback.
"""

import sys
from typing import Any

import click

from rdzv_client import endpoint, operations, show, show_inside
from rdzv_client.cli_options import Target, credential_options, say
from rdzv_client.cli_token import token
from rdzv_client.credentials import Credentials
from rdzv_client.errors import RdzvError
from rdzv_proto import __version__
from rdzv_proto.auth import Scope

EXIT_FAILED = 1
EXIT_USAGE = 2


class _Group(click.Group):
    """Turns the library's errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RdzvError as error:
            say(f"rdzv: {error}", err=True)
            sys.exit(EXIT_FAILED)
        except ValueError as error:
            say(f"rdzv: {error}", err=True)
            sys.exit(EXIT_USAGE)


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.option(
    "--server",
    envvar=endpoint.VARIABLE,
    show_envvar=True,
    metavar="HOST[:PORT]",
    help=f"Where rdzv-server listens; {endpoint.FALLBACK} if neither is given.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=3.0,
    help="Seconds to wait for the server.",
)
@credential_options
@click.version_option(__version__, prog_name="rdzv", message="%(prog)s %(version)s")
@click.pass_context
def command(ctx: click.Context, /, server: str | None, timeout: float, **files: str | None) -> None:
    """Look at a rendezvous server and at the runs that meet there."""
    ctx.obj = Target(server, timeout, Credentials.find({}, **files))


command.add_command(token)


@command.command()
@click.argument("run", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="For people, or for programs (its keys are stable).",
)
@click.pass_obj
def status(target: Target, run: str | None, output: str) -> None:
    """Show the server, its runs, and with RUN the members of that run.

    For each run: its generation and fence, who is in with which group rank, the reason of the last
    quorum decision; with RUN also who waits at which barrier for whom, the workers' store, NCCL
    communicators and who has not fetched their ids, and which nodes cannot reach MASTER_ADDR.
    """
    admin = target.admin(run or "")
    try:
        where = endpoint.show(admin.endpoints)
        server, round_trip_s = admin.status()
        runs = admin.runs(run or "")
        if output == "json":
            rows = [(r, admin.members(r.run), admin.generation(r.run)) for r in runs]
            click.echo(show.document(where, server, round_trip_s, admin.protocol, rows))
            return
        say(show.server_lines(where, server, round_trip_s, admin.protocol) + "\n")
        if run or len(runs) == 1:
            say(show.run_lines(runs[0], admin.members(runs[0].run), server.protocol))
            inside = admin.generation(runs[0].run)
            if inside is not None and (text := show_inside.lines(inside)):
                say("\n" + text)
        else:
            say(show.runs_table(runs) if runs else "no runs")
    finally:
        admin.close()


@command.command()
@click.argument("run")
@click.option("--reason", default="", show_default=False, help="Shown to every node of the run.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def close(target: Target, run: str, reason: str, yes: bool) -> None:
    """End RUN for all its nodes; it refuses joins for the server's keep time."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("close ends a job for all its nodes: say --yes")
        click.confirm(f"End run {run!r} for all its nodes?", abort=True)
    admin = target.admin(run, Scope.ADMIN)
    try:
        admin.close_run(run, reason)
        say(f"run {run} is closed")
    finally:
        admin.close()


@command.command()
@click.argument("run")
@click.argument("name")
@click.option("--count", type=click.IntRange(min=1), required=True, help="How many must come.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=operations.BARRIER_S,
    help="Seconds to wait, from the first one's arrival; the first one's counts.",
)
@click.option(
    "--as",
    "who",
    default="",
    show_default=False,
    help="Your name in messages; the host name if not given.",
)
@click.pass_obj
def barrier(target: Target, run: str, name: str, count: int, timeout_s: float, who: str) -> None:
    """Wait until COUNT clients have come to barrier NAME of RUN.

    For scripts: no node has to join. The rounds are counted by the server, so the same line can be
    used again. Ends with 0 when all are there, with 1 otherwise, saying who is there.
    """
    with target.visit(run, who) as client:
        meeting = client.barrier(name, count, timeout=timeout_s)
    say(f"{name}: all {count} are there (round {meeting.round})")


@command.group()
def kv() -> None:
    """Keys of a run: they outlive its generations, and end with the run."""


@kv.command("get")
@click.argument("run")
@click.argument("key")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=0.0,
    help="Seconds to wait for it.",
)  # fmt: skip
@click.pass_obj
def kv_get(target: Target, run: str, key: str, wait_s: float) -> None:
    """Print the value of KEY, byte for byte."""
    with target.visit(run) as client:
        value = client.kv.get(key, wait_s)
    out = sys.stdout.buffer
    out.write(value + (b"\n" if out.isatty() else b""))
    out.flush()


@kv.command("set")
@click.argument("run")
@click.argument("key")
@click.argument("value")
@click.option("--if-absent", is_flag=True, help="Only if the key is not there.")
@click.option(
    "--if-revision", type=click.IntRange(min=1), help="Only if that is the key's revision."
)
@click.pass_obj
def kv_set(
    target: Target,
    run: str,
    key: str,
    value: str,
    if_absent: bool,
    if_revision: int | None,
) -> None:
    """Set KEY to VALUE; `-` takes the value from stdin. Prints the key's revision."""
    if if_absent and if_revision is not None:
        raise click.UsageError("--if-absent and --if-revision exclude each other")
    data = sys.stdin.buffer.read() if value == "-" else value.encode()
    with target.visit(run) as client:
        if not if_absent and if_revision is None:
            click.echo(client.kv.set(key, data))
            return
        done = client.kv.cas(key, None, data, revision=if_revision or 0)
    if not done.swapped:
        there = "it is not there" if done.value is None else f"it has revision {done.revision}"
        say(f"rdzv: {key} was not set: {there}", err=True)
        sys.exit(EXIT_FAILED)
    click.echo(done.revision)


@kv.command("add")
@click.argument("run")
@click.argument("key")
@click.argument("delta", type=int, default=1)
@click.pass_obj
def kv_add(target: Target, run: str, key: str, delta: int) -> None:
    """Add DELTA to the counter KEY, and print the sum."""
    with target.visit(run) as client:
        click.echo(client.kv.add(key, delta))


@kv.command("delete")
@click.argument("run")
@click.argument("keys", nargs=-1, required=True)
@click.pass_obj
def kv_delete(target: Target, run: str, keys: tuple[str, ...]) -> None:
    """Delete KEYS, and print how many were there."""
    with target.visit(run) as client:
        click.echo(client.kv.delete(*keys))


@kv.command("list")
@click.argument("run")
@click.argument("prefix", default="")
@click.option("--values", is_flag=True, help="With the values.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table",
    help="For people, or for programs.",
)  # fmt: skip
@click.pass_obj
def kv_list(target: Target, run: str, prefix: str, values: bool, output: str) -> None:
    """List the keys that begin with PREFIX."""
    with target.visit(run) as client:
        rows = client.kv.list(prefix, values=values)
    if output == "json":
        click.echo(show_inside.keys_document(rows))
    else:
        say(show_inside.keys_table(rows, values=values) if rows else "no keys")


def main() -> None:
    """Entry point."""
    command(prog_name="rdzv")
