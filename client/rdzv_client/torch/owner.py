"""Who a job under the run id `none` belongs to.

`none` is torchrun's default for --rdzv-id, so on a shared server strangers meet under it. A join then
carries its owner, and the server refuses those of another one instead of merging two jobs.
"""

import contextlib
import getpass
import hashlib
import io
import os
import sys

DEFAULT_RUN_ID = "none"


def owner_of_run(run_id: str) -> str:
    """User and script digest for the run `none`; empty for every other run."""
    if run_id != DEFAULT_RUN_ID:
        return ""
    script = hashlib.sha256(os.path.basename(_script()).encode()).hexdigest()[:12]
    return f"{_user()}/{script}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


def _script() -> str:
    """The training script in torchrun's command line, or the program that launches agents itself."""
    from torch.distributed.run import get_args_parser

    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        return str(get_args_parser().parse_args(sys.argv[1:]).training_script)
    return sys.argv[0] if sys.argv else ""
