"""The command `rdzv`: look at a rendezvous server and its runs.

Exit codes: 0 good; 1 the server cannot be reached, is none, or refuses; 2 wrong usage. Errors are one
line on stderr, never a traceback.
"""

import sys
from typing import Any

import click

from rdzv_client import endpoint, show
from rdzv_client.admin import Admin
from rdzv_client.errors import RdzvError
from rdzv_proto import __version__

EXIT_FAILED = 1
EXIT_USAGE = 2


class _Group(click.Group):
    """Turns the library's errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RdzvError as error:
            click.echo(f"rdzv: {error}", err=True)
            sys.exit(EXIT_FAILED)
        except ValueError as error:
            click.echo(f"rdzv: {error}", err=True)
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
@click.version_option(__version__, prog_name="rdzv", message="%(prog)s %(version)s")
@click.pass_context
def command(ctx: click.Context, server: str | None, timeout: float) -> None:
    """Look at a rendezvous server and at the runs that meet there."""
    ctx.obj = (server, timeout)


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
def status(target: tuple[str | None, float], run: str | None, output: str) -> None:
    """Show the server, its runs, and with RUN the members of that run.

    For each run: its generation and fence, who is in with which group rank, and the reason of the
    last quorum decision.
    """
    admin = Admin(*target)
    try:
        where = endpoint.show(admin.endpoints)
        server, round_trip_s = admin.status()
        runs = admin.runs(run or "")
        if output == "json":
            rows = [(r, admin.members(r.run)) for r in runs]
            click.echo(show.document(where, server, round_trip_s, rows))
            return
        click.echo(show.server_lines(where, server, round_trip_s))
        click.echo()
        if run or len(runs) == 1:
            click.echo(show.run_lines(runs[0], admin.members(runs[0].run)))
        else:
            click.echo(show.runs_table(runs) if runs else "no runs")
    finally:
        admin.close()


@command.command()
@click.argument("run")
@click.option("--reason", default="", help="Shown to every node of the run.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def close(target: tuple[str | None, float], run: str, reason: str, yes: bool) -> None:
    """End RUN for all its nodes; it refuses joins for the server's keep time."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("close ends a job for all its nodes: say --yes")
        click.confirm(f"End run {run!r} for all its nodes?", abort=True)
    admin = Admin(*target)
    try:
        admin.close_run(run, reason)
        click.echo(f"run {run} is closed")
    finally:
        admin.close()


def main() -> None:
    """Entry point."""
    command(prog_name="rdzv")
