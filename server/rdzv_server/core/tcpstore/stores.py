"""The workers' stores that the server serves (`worker_store=server`): one for each generation.

A generation does not form before the shell has opened a port for it; it ends with its port. Nothing
that was set in one generation is ever visible in another, for each has a key space of its own. A
worker that its agent is about to stop must not fail on its store first, so present connections
outlive the generation by some seconds.
"""

from rdzv_proto.messages import Fence
from rdzv_server.core.events import CloseListener, ListenerFailed, ListenerOpened, OpenListener
from rdzv_server.core.model import Generation, Run
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore import clients as store_clients
from rdzv_server.core.tcpstore.model import Stage, Store
from rdzv_server.core.tcpstore.space import KeySpace

LINGER_S = 5.0
"""Agents learn of the end within milliseconds and poll ten times a second; loaded ones need longer."""

RETRY_S = 1.0
"""After a port could not be opened. Ports come free when some other generation ends."""

WORKER_STORES = ("rank0", "server")
"""What a policy may ask for."""


def obstacle(tables: Tables, run: Run) -> str:
    """Why the run's next generation, though decided, cannot form now; empty if it can. The port it
    needs is asked for here."""
    if run.policy is None or run.policy.worker_store != "server":
        return ""
    store = run.store
    if store is None:
        tables.listener_last += 1
        store = Store(tables.listener_last, run.id, KeySpace(run.quota), run.quota)
        run.store = tables.stores[store.listener] = store
        tables.effects.append(OpenListener(store.listener))
    elif store.stage is Stage.FAILED and tables.t >= store.retry_at:
        store.stage = Stage.OPENING
        tables.effects.append(OpenListener(store.listener))
    if store.stage is Stage.OPEN:
        return ""
    if store.stage is Stage.OPENING:
        return "opening a port for the workers' store"
    return (
        f"enough nodes joined, but the server cannot open a port for the workers' store: "
        f"{store.reason}; it keeps trying"
    )


def retry_at(run: Run) -> float | None:
    """When a failed attempt will be repeated; None if nothing failed."""
    store = run.store
    return store.retry_at if store is not None and store.stage is Stage.FAILED else None


def being_opened(run: Run) -> bool:
    """The shell has been asked, and answers in this very batch."""
    return run.store is not None and run.store.stage is Stage.OPENING


def listener_opened(tables: Tables, event: ListenerOpened) -> None:
    """The port is there."""
    store = tables.stores.get(event.listener)
    if store is None:
        tables.effects.append(CloseListener(event.listener))  # given back meanwhile
        return
    store.stage, store.port, store.reason = Stage.OPEN, event.port, ""
    _touch(tables, store)


def listener_failed(tables: Tables, event: ListenerFailed) -> None:
    """There is no port. One line in the log for each new reason, not for each attempt."""
    store = tables.stores.get(event.listener)
    if store is None:
        return
    if event.reason != store.reason:
        tables.report(
            "store_not_opened", level="error", run=store.run_id, reason=event.reason,
            text="the next generation waits for this",
        )  # fmt: skip
    store.stage, store.reason, store.retry_at = Stage.FAILED, event.reason, tables.t + RETRY_S
    _touch(tables, store)


def adopt(tables: Tables, run: Run, fence: Fence) -> Store | None:
    """Give the waiting store to the generation that forms now."""
    store, run.store = run.store, None
    if store is not None:
        store.fence = fence
        tables.report("store_opened", run=run.id, fence=fence, port=store.port)
    return store


def retire(tables: Tables, generation: Generation) -> None:
    """The generation is over: no new clients from now on, and the present ones go soon."""
    store = generation.store
    if store is None or store.stage is not Stage.OPEN:
        return
    store.stage = Stage.CLOSING
    tables.effects.append(CloseListener(store.listener))
    tables.report(
        "store_closing", run=store.run_id, fence=store.fence, port=store.port,
        clients=len(store.clients), accepted=store.accepted, keys=len(store.keys),
    )  # fmt: skip
    if store.clients:
        tables.deadlines.set(("store", store.listener, 0), tables.t + LINGER_S)
    else:
        store_clients.discard(tables, store)


def give_back(tables: Tables, run: Run) -> None:
    """No generation will form now: the port that waited for one is closed."""
    store, run.store = run.store, None
    if store is None:
        return
    if store.stage is not Stage.FAILED:
        tables.effects.append(CloseListener(store.listener))
    store_clients.discard(tables, store)


def linger_over(tables: Tables, listener: int) -> None:
    """The last connections of an ended generation are cut."""
    store_clients.discard(tables, tables.stores[listener])


def _touch(tables: Tables, store: Store) -> None:
    run = tables.runs.get(store.run_id)
    if run is not None and run.store is store:
        tables.touch(run)
