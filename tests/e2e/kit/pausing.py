"""A training script in which rank 0 is stopped for longer than its lease: pausing.py LOG.

Rank 0 says when it begins to wait at a barrier to which nobody else comes; there the test stops it. Afterwards all meet.
"""

import sys
import time

from rdzv_client import Client
from rdzv_client.errors import BarrierBroken, SessionLost
from tests.e2e.kit.worker import say

log = sys.argv[1]
with Client.from_env() as worker:
    g = worker.generation
    g.barrier("start", timeout=60)
    if g.rank == 0:
        say(log, "waits")
        try:
            g.barrier("alone", timeout=60)
        except (BarrierBroken, SessionLost) as lost:  # whichever it reads first
            say(log, "lost", reason=str(lost), ended=g.ended.is_set())
    deadline = time.monotonic() + 60
    while True:
        try:
            g.barrier("end", timeout=60)
            break
        except SessionLost:  # sent before it was known
            assert time.monotonic() < deadline
    say(log, "met", ended=g.ended.is_set())
