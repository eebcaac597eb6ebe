"""From a configuration to a running server and back to an exit code."""

import gc

from rdzv_server.config import Config
from rdzv_server.shell import log, loop
from rdzv_server.shell.levels import Levels
from rdzv_server.shell.opened import Opened
from rdzv_server.shell.process import Process


def serve(config: Config) -> int:
    """Run the server until a signal ends it.

    A server of a cluster that led and does not any more begins anew, with nothing of what it was: as if it had
    just been started.

    Returns:
        Exit code: 0 after an orderly shutdown.

    Raises:
        ListenError, AccessError, StorageError, LevelError: it cannot start; see `Opened` and `Levels`.
        ImportError: uvloop was asked for by name and is missing.
    """
    levels = Levels(config)
    name = loop.pick(config.loop)
    if name == "asyncio" and config.loop == "auto":
        log.event("uvloop_missing", text="running on asyncio's own loop")
    process = Process(config, levels)
    while (code := loop.run(process.serve(Opened(config)), name)) is None:
        gc.unfreeze()
    return code
