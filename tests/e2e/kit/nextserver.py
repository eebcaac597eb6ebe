"""A server that speaks protocol versions 1 and 2: `python -m tests.e2e.kit.nextserver [--next-schema] …`.

With the first flag it also keeps its state in schema 2. All others are those of rdzv-server.
"""

import sys

import pytest

from rdzv_server.cli import main
from tests import nextversion

if __name__ == "__main__":
    patch = pytest.MonkeyPatch()
    nextversion.install(patch)
    if "--next-schema" in sys.argv:
        sys.argv.remove("--next-schema")
        nextversion.install_schema(patch)
    main()
