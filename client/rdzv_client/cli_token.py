"""`rdzv token`: making tokens, and seeing what a file of them allows. Needs no server."""

import os
import secrets
import stat
import sys

import click

from rdzv_client.cli_options import Target, say
from rdzv_client.credentials import shown
from rdzv_client.show import table
from rdzv_proto import auth
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token


@click.group()
def token() -> None:
    """Tokens: with one in force, only who knows it gets in, and only to what it allows."""


@token.command("new")
@click.option("--run", default="", show_default=False, help="Only for this run.")
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in Scope]),
    help="read: look. join: take part too. admin: act on runs from outside too. "
    "With --run: join if not given.",
)
@click.pass_obj
def token_new(target: Target, run: str, scope: str | None) -> None:
    """Print a new master token; with --run or --scope, one that is derived from the master token in
    --token-file and allows less.

    The server takes every token that comes from its master token, and needs no list of them. Keep
    them in files that only their user can read: `rdzv token new > rdzv.token` sees to that.
    """
    _guard_stdout()
    if not run and scope is None:
        click.echo(Token(EVERYTHING, secrets.token_bytes(auth.SECRET_BYTES)).text())
        return
    grant = Grant(Scope(scope or Scope.JOIN.value), run)
    if grant == EVERYTHING:
        raise click.UsageError(
            "a token for everything is a master token: `rdzv token new` makes one without --scope"
        )
    click.echo(_master(target).derive(grant).text())


@token.command("show")
@click.pass_obj
def token_show(target: Target) -> None:
    """Show what the tokens in --token-file allow; their secrets stay in it."""
    rows = [
        (
            one.key,
            one.grant.scope.value,
            one.grant.run or "all runs",
            "master" if one.master else "derived",
        )
        for one in _tokens(target)
    ]
    say(table(("KEY", "SCOPE", "RUN", "KIND"), rows))


def _tokens(target: Target) -> list[Token]:
    tokens = target.credentials.tokens()
    if not tokens:
        raise click.UsageError("which token file? Say --token-file, or set RDZV_TOKEN_FILE")
    return tokens


def _master(target: Target) -> Token:
    tokens = _tokens(target)
    master = auth.choose(tokens, EVERYTHING)
    if master is None:
        there = ", ".join(shown(one.grant) for one in tokens)
        raise ValueError(
            f"token file {target.credentials.token_file}: tokens are derived from a master token, and "
            f"there is only: {there}"
        )
    return master


def _guard_stdout() -> None:
    """A secret is about to be written: the shell made the file for everybody's eyes."""
    try:
        file = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # it is caught by a program
    if os.isatty(file):
        say("rdzv: a token is a secret: `rdzv token new > FILE` keeps it out of sight", err=True)
        return
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        return
    # A file that is added to may be meant for a group; a new one is nobody's but its owner's.
    if found.st_uid == os.geteuid():
        if not found.st_size or found.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            os.fchmod(file, 0o600)
    elif found.st_mode & (stat.S_IRWXO | stat.S_IRWXG):
        say("rdzv: others can read the file this token goes to: `chmod 600` it", err=True)
