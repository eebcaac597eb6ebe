"""A training script that attaches to its agent's generation: attaching.py LOG. The workers meet at a barrier."""

import sys

from rdzv_client import Client
from tests.e2e.kit import leaks
from tests.e2e.kit.worker import say

with Client.from_env() as worker:
    leaks.note(worker._engine.session.welcome.token)  # type: ignore[union-attr]
    meeting = worker.generation.barrier("start", payload=b"here", timeout=60)
    say(sys.argv[1], "met", met=len(meeting.payloads))
