"""What workers inherit, so that `Client.from_env()` works in them."""

import contextlib
import fcntl
import os
import stat
import tempfile

from rdzv_client import endpoint, worker
from rdzv_client.blocking import Client, Generation


class WorkerExport:
    """Environment variables and the token file of one agent's workers.

    The agent's environment is inherited by the workers it starts after `next_rendezvous()`. Every name is
    put there when this is made, before the client connects; later only values change, which does not
    move the environment under a thread that reads it (see `Engine.start`). The file
    is made once and rewritten for each generation, so that nothing but one write stands between a
    formed generation and its workers. It is locked for as long as the agent lives; files whose lock
    is free are those of killed agents, and the next agent of the user removes them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        folder = _folder()
        _sweep(folder)
        self._file, self._path = _locked_file(folder)
        self._removed = False
        os.environ.update(
            {
                endpoint.VARIABLE: endpoint.show(client.engine.endpoints),
                worker.RUN: client.options.run,
                worker.NODE_ID: client.options.node_id,
                worker.TOKEN_FILE: self._path,
                worker.FENCE: "",  # not in a generation yet
                worker.LEASE: "",
            }
        )
        # What the agent was told by --rdzv-conf counts for them too; what it was not told does not.
        for name, value in client.credentials.environment().items():
            if value:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)

    def publish(self, generation: Generation) -> None:
        """Let the workers of this generation attach to it."""
        if self._removed:
            return  # the agent is ending
        os.environ[worker.FENCE] = str(generation.fence)
        os.environ[worker.LEASE] = str(round(self._client.engine.session.lease_s * 1000))
        text = worker.token_text(generation.fence, generation.worker_token)
        os.ftruncate(self._file, os.pwrite(self._file, text, 0))

    def remove(self) -> None:
        """The agent ends: so does the token file."""
        if not self._removed:
            self._removed = True
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            with contextlib.suppress(OSError):
                os.close(self._file)


def _folder() -> str:
    """One folder per user, or a fresh one if somebody else took that name."""
    path = os.path.join(tempfile.gettempdir(), f"rdzv-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    return path if private and found.st_uid == os.getuid() else tempfile.mkdtemp(prefix="rdzv-")


def _locked_file(folder: str) -> tuple[int, str]:
    """A new file that only this user can read, locked. Another agent's sweep may come before the
    lock; then there is no file of that name any more, and the next one is tried."""
    while True:
        file, path = tempfile.mkstemp(prefix="worker-token-", dir=folder)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(path):
            return file, path
        os.close(file)


def _sweep(folder: str) -> None:
    """Remove the files of agents that were killed: nobody holds their lock any more."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(file)
