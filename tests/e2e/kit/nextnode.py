"""A raw node that speaks protocol versions 1 and 2: `python -m tests.e2e.kit.nextnode`, as `rawnode`.

With the option `only_next` it speaks version 2 only.
"""

import json
import sys

import pytest

from tests import nextversion
from tests.e2e.kit import rawnode

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    spoken = nextversion.ONLY_2 if options.pop("only_next", False) else nextversion.BOTH
    nextversion.install(pytest.MonkeyPatch(), spoken)
    sys.argv[1] = json.dumps(options)
    rawnode.main()
