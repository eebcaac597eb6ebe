"""What `rdzv status RUN` prints of a generation from inside, and what `rdzv kv list` prints."""

import base64
from collections.abc import Sequence

import msgspec

from rdzv_client.operations import KeyEntry
from rdzv_client.show import duration, table
from rdzv_proto.messages import (
    BarrierStatus,
    CommunicatorStatus,
    GenerationStatus,
    ProbeStatus,
    StoreStatus,
)
from rdzv_proto.text import visible

VALUE_CHARS_SHOWN = 60
"""Of a value in a table; a line should stay a line."""

STORE_LOST = (
    "master: the workers' store was lost with the server process that served it; "
    "what runs goes on, the next generation gets a new one"
)

RANKS_SHOWN_MAX = 16
"""Single ranks and ranges in one line."""


def lines(status: GenerationStatus) -> str:
    """Everything that is worth a line; empty if nothing is."""
    parts = []
    if status.store_lost:
        parts.append(STORE_LOST)
    elif status.master.host or status.store is not None:
        parts.append(_master(status))
    if status.store is not None:
        parts.append(_store(status.store))
    if status.keys or status.run_keys:
        parts.append(
            f"keys: {status.keys} of the generation, {status.run_keys} of the run, "
            f"{status.value_bytes} bytes"
        )
    parts += [_barrier(row) for row in status.barriers]
    parts += [_communicator(row) for row in status.communicators]
    return "\n".join(parts)


def keys_table(rows: Sequence[KeyEntry], *, values: bool) -> str:
    """One row per key; `table` escapes what clients wrote."""
    head = ("KEY", "REVISION", "BYTES") + (("VALUE",) if values else ())
    body = [
        (row.key, str(row.revision), str(row.value_bytes))
        + ((_value(row.value or b""),) if values else ())
        for row in rows
    ]
    return table(head, body)


def keys_document(rows: Sequence[KeyEntry]) -> str:
    """The keys as JSON; a value is `value` if it is text, else `value_base64`."""
    return msgspec.json.format(msgspec.json.encode([_key(row) for row in rows]), indent=2).decode()


def _key(row: KeyEntry) -> dict[str, object]:
    data: dict[str, object] = {
        "key": row.key, "revision": row.revision, "value_bytes": row.value_bytes,
    }  # fmt: skip
    if row.value is not None:
        try:
            data["value"] = row.value.decode()
        except UnicodeDecodeError:
            data["value_base64"] = base64.b64encode(row.value).decode()
    return data


def _master(status: GenerationStatus) -> str:
    """MASTER_ADDR and who can reach it."""
    host = f"[{status.master.host}]" if ":" in status.master.host else status.master.host
    text = f"master: {host}:{status.master.port}"
    if status.store is not None:
        text = f"master: this server, port {status.store.port} (worker_store=server)"
    failed = [probe for probe in status.probes if probe.error]
    good = len(status.probes) - len(failed)
    if good:
        text += f" · reached by {good} of {len(status.probes)} nodes that tried"
    return "\n".join([text, *(_probe(probe) for probe in failed)])


def _probe(probe: ProbeStatus) -> str:
    return f"  {probe.node} cannot reach it ({probe.error}), after {duration(probe.after_ms)}"


def _store(store: StoreStatus) -> str:
    of = f" of {store.world_size}" if store.world_size else ""
    text = f"workers' store: {store.clients}{of} connected"
    if store.ranks:
        text += f" (ranks {_ranges(store.ranks)})"
    if store.missing:
        text += f" · not connected: {', '.join(store.missing)}"
    return f"{text} · {store.keys} keys, {store.value_bytes} bytes"


def _barrier(row: BarrierStatus) -> str:
    text = (
        f"barrier {row.name} (round {row.round}): {row.arrived} of {row.needed} "
        f"{'clients' if row.of == 'count' else row.of}, for {duration(row.age_ms)}, "
        f"{duration(row.left_ms)} left"
    )
    return text + (f" · missing: {', '.join(row.missing)}" if row.missing else "")


def _communicator(row: CommunicatorStatus) -> str:
    text = f"communicator {row.name} (via {row.via}): {row.state}"
    if row.attempt:
        text += f", attempt {row.attempt}"
    if row.minter:
        text += f" · id from {row.minter}"
    needed = f" of {row.needed}" if row.needed else ""
    text += f" · fetched by {row.fetched}{needed}"
    if row.ready:
        text += f", ready {row.ready}{needed}"
    if row.missing:
        text += f" · missing: {', '.join(row.missing)}"
    if row.reason:
        text += f" · {row.reason}"
    return f"{text} · for {duration(row.age_ms)}"


def _ranges(ranks: Sequence[int]) -> str:
    """`0-3, 7`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in spans[:RANKS_SHOWN_MAX]]
    return ", ".join(shown) + (", …" if len(spans) > RANKS_SHOWN_MAX else "")


def _value(value: bytes) -> str:
    try:
        return visible(value.decode(), VALUE_CHARS_SHOWN)
    except UnicodeDecodeError:
        return visible(f"0x{value.hex()}", VALUE_CHARS_SHOWN)
