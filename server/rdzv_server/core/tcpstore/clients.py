"""The clients of the stores: torch's TCPStore connections, from the first byte to the last.

What is wrong is closed without an answer, as torch's own server does; the log says why.
"""

from rdzv_proto import limits, tcpstore
from rdzv_proto.tcpstore import (
    AnyRequest,
    BadRequestError,
    DeleteKey,
    Get,
    MultiGet,
    MultiSet,
    Ping,
    Set,
)
from rdzv_server.core.events import StoreClose, StoreLost, StoreOpened, StoreReceived, StoreSend
from rdzv_server.core.quota import Quota
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore.exchanges import rank_told_by
from rdzv_server.core.tcpstore.model import SHARED, Stage, Store, StoreClient
from rdzv_server.core.tcpstore.space import KeySpace

REFUSALS_TOLD_S = 1.0
"""Between two lines in the log about one store: a port scan must not fill the disk."""

HELD_FREE_BYTES = 64 * 1024
"""An incomplete request of up to this size does not count against the quota."""


def opened(tables: Tables, event: StoreOpened) -> None:
    """A client connected to a store's port, or said a TCPStore hello at the main port."""
    store = tables.stores.get(event.listener)
    if store is None and event.listener == SHARED:
        store = _open_shared(tables)
    if store is None or store.stage is not Stage.OPEN:
        tables.effects.append(StoreClose(event.conn))  # came just before the listener closed
        return
    client = StoreClient(event.conn, event.peer_host, store)
    if tables.settings.guarded and not _of_a_node(tables, store, event.peer_host):
        tables.denied += 1
        _report_refusal(tables, client, "its address is none of this generation's nodes")
        tables.effects.append(StoreClose(event.conn))
        return
    store.clients[event.conn] = tables.store_clients[event.conn] = client
    store.accepted += 1
    tables.deadlines.set(("greet", event.conn, 0), tables.t + tables.settings.hello_timeout_s)


def received(tables: Tables, event: StoreReceived) -> None:
    """Bytes came: do every request that is complete, and answer them all at once."""
    client = tables.store_clients.get(event.conn)
    if client is None:
        return  # closed in this very batch of input
    greeted = client.parser.greeted
    if client.held_bytes:
        _hold(client, 0)
    client.parser.feed(event.data)
    answers: list[bytes] = []
    wrong = _do_all(tables, client, answers)
    if answers:
        tables.effects.append(StoreSend(client.conn, b"".join(answers)))
    if wrong:
        _refuse(tables, client, wrong)
    elif client.parser.greeted and not greeted:
        tables.deadlines.cancel(("greet", client.conn, 0))


def lost(tables: Tables, event: StoreLost) -> None:
    """A client is gone."""
    client = tables.store_clients.get(event.conn)
    if client is not None:
        _forget(tables, client)


def not_greeted(tables: Tables, conn: int) -> None:
    """The time for a hello is over."""
    client = tables.store_clients[conn]
    _refuse(tables, client, f"no hello within {tables.settings.hello_timeout_s:g} s")


def discard(tables: Tables, store: Store) -> None:
    """The store is over: its clients are cut, its keys are gone."""
    for client in list(store.clients.values()):
        tables.effects.append(StoreClose(client.conn))
        _drop(tables, client)
    store.keys.clear()
    store.exchanges.clear()
    tables.stores.pop(store.listener, None)
    tables.deadlines.cancel(("store", store.listener, 0))


def _open_shared(tables: Tables) -> Store:
    """The store at the main port lives while it has clients, so that no job finds the keys of an
    earlier one."""
    quota = Quota(limits.KV_BYTES_PER_RUN_MAX, limits.KV_KEYS_PER_RUN_MAX)
    store = Store(SHARED, "-", KeySpace(quota), quota, stage=Stage.OPEN)
    tables.stores[SHARED] = store
    tables.report("tcpstore_opened", text="first TCPStore client at the main port")
    return store


def _do_all(tables: Tables, client: StoreClient, answers: list[bytes]) -> str:
    """Returns what was wrong, if something was; answers to what came before are good."""
    store, parser = client.store, client.parser
    size = 0
    try:
        while (ask := parser.next()) is not None:
            answer = store.keys.do(client, ask)
            _note(tables, client, ask)
            for other in store.keys.woken():
                if other is client:  # it woke itself: torch's server tells that first
                    answers.append(tcpstore.YES)
                else:
                    tables.effects.append(StoreSend(other.conn, tcpstore.YES))
            if answer:
                answers.append(answer)
                size += len(answer)
                if size > limits.STORE_ANSWER_BYTES_MAX:
                    return f"answers exceed {limits.STORE_ANSWER_BYTES_MAX} bytes"
        if len(parser) > HELD_FREE_BYTES:
            _hold(client, len(parser))
    except BadRequestError as error:
        return str(error)
    return ""


def _note(tables: Tables, client: StoreClient, ask: AnyRequest) -> None:
    """What a request tells about its sender and about unique ids on their way."""
    exchanges = client.store.exchanges
    match ask:
        case Get():
            exchanges.fetched(ask.key, client)
        case Set():
            _note_set(tables, client, ask.key, ask.value)
        case MultiSet():
            for key, value in zip(ask.keys, ask.values, strict=True):
                _note_set(tables, client, key, value)
        case MultiGet() if exchanges.by_key:
            for key in ask.keys:
                exchanges.fetched(key, client)
        case DeleteKey():
            exchanges.deleted(ask.key)
        case Ping() if client.pid is None:
            client.pid = ask.nonce


def _note_set(tables: Tables, client: StoreClient, key: bytes, value: bytes) -> None:
    client.store.exchanges.published(key, len(value), client, tables.t)
    if client.rank is None:
        client.rank = rank_told_by(key)


def _hold(client: StoreClient, held_bytes: int) -> None:
    """Count what is held for an incomplete request.

    Raises:
        BadRequestError: it does not fit.
    """
    quota = client.store.quota
    grown = held_bytes - client.held_bytes
    if not quota.allows(grown, 0):
        raise BadRequestError(f"an incomplete request does not fit into {quota.bytes_max} bytes")
    quota.take(grown, 0)
    client.held_bytes = held_bytes


def _of_a_node(tables: Tables, store: Store, host: str) -> bool:
    """The nodes' addresses are looked up again only for one that was not there before: a large world
    connects within a second, and nodes seldom change their address."""
    if host not in store.hosts:
        run = tables.runs.get(store.run_id)
        generation = None if run is None else run.generation
        ids = generation.rank_of if generation is not None and generation.store is store else ()
        nodes = (tables.sessions.get(id) for id in ids)
        store.hosts = frozenset(node.peer_host for node in nodes if node is not None)
    return host in store.hosts


def _refuse(tables: Tables, client: StoreClient, reason: str) -> None:
    _report_refusal(tables, client, reason)
    tables.effects.append(StoreClose(client.conn))
    _forget(tables, client)


def _report_refusal(tables: Tables, client: StoreClient, reason: str) -> None:
    store = client.store
    store.refusals += 1
    told = store.refusal_told_at
    if told is None or tables.t - told >= REFUSALS_TOLD_S:
        tables.report(
            "store_client_closed", level="warning", run=store.run_id, fence=store.fence,
            peer=client.peer_host, reason=reason, suppressed=store.refusals - 1,
        )  # fmt: skip
        store.refusals, store.refusal_told_at = 0, tables.t


def _forget(tables: Tables, client: StoreClient) -> None:
    _drop(tables, client)
    store = client.store
    if store.clients:
        return
    if store.stage is Stage.CLOSING:
        discard(tables, store)
    elif store.listener == SHARED:
        tables.report("tcpstore_closed", keys=len(store.keys), text="its last client left")
        discard(tables, store)


def _drop(tables: Tables, client: StoreClient) -> None:
    _hold(client, 0)
    client.store.keys.drop(client)
    del client.store.clients[client.conn], tables.store_clients[client.conn]
    tables.deadlines.cancel(("greet", client.conn, 0))
