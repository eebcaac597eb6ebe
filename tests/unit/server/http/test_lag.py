"""How late the loop is."""

import time

from rdzv_server.http.buckets import LAG_S, Buckets
from rdzv_server.http.lag import Lag
from tests.unit.server.shell.waiting import pause, until


async def test_a_loop_that_is_held_up_is_seen() -> None:
    seen = Buckets(LAG_S)
    lag = Lag(seen)
    lag.start()
    time.sleep(0.7)  # holds up the loop: this is what is measured
    await until(lambda: sum(seen.counts) > 0)
    lag.stop()
    assert 0.4 < seen.sum_s < 5


async def test_nothing_is_looked_at_after_the_end() -> None:
    seen = Buckets(LAG_S)
    lag = Lag(seen)
    lag.start()
    lag.stop()
    await pause(0.4)
    assert sum(seen.counts) == 0
    lag.stop()
