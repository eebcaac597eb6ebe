"""What workers inherit, so that `Client.from_env()` works in them."""

import contextlib
import os
import shutil
import tempfile

from rdzv_client import endpoint, worker
from rdzv_client.blocking import Client, Generation


class WorkerExport:
    """Environment variables and the token file of one agent's workers.

    The agent's environment is inherited by the workers it starts after `next_rendezvous()`. The file
    is made once and rewritten for each generation, so that nothing but one write stands between a
    formed generation and its workers.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._folder = tempfile.mkdtemp(prefix="rdzv-")  # 0700
        path = os.path.join(self._folder, "worker-token")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._removed = False
        os.environ.update(
            {
                endpoint.VARIABLE: endpoint.show(client.engine.endpoints),
                worker.RUN: client.options.run,
                worker.NODE_ID: client.options.node_id,
                worker.TOKEN_FILE: path,
            }
        )

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
                os.close(self._file)
            shutil.rmtree(self._folder, ignore_errors=True)
