"""What people see of rdzv in the output of torchrun, without configuring anything."""

import logging
import os
import sys

VARIABLE = "RDZV_LOG_LEVEL"


def set_up() -> None:
    """Write the library's lines to stderr, unless the program has configured logging itself.

    A job that waits must say for what: torchrun shows warnings only, and nothing of other loggers.
    `RDZV_LOG_LEVEL` (debug, info, warning, error) chooses how much.
    """
    log = logging.getLogger("rdzv")
    own = [h for h in log.handlers if not isinstance(h, logging.NullHandler)]
    if own or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.propagate = False
    level = logging.getLevelName(os.environ.get(VARIABLE, "info").upper())
    log.setLevel(level if isinstance(level, int) else logging.INFO)
