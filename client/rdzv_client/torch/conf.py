"""`--rdzv-conf`: torch's own keys keep their meaning, ours are added, anything else is refused.

Every key of `KEYS` is also read from the environment as `RDZV_<KEY>`; the command line wins.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rdzv_client.credentials import Credentials

KEYS: dict[str, str] = {
    "join_timeout": "seconds to wait for the minimum number of nodes (600)",
    "last_call_timeout": "seconds to wait for more nodes once the minimum is there (30)",
    "close_timeout": "seconds that shutting down may take to tell the server (30)",
    "keep_alive_interval": "seconds between heartbeats (5)",
    "keep_alive_max_attempt": "missed heartbeats after which a node counts as lost (3)",
    "read_timeout": "seconds an agent waits for another one's value in the rank exchange (60)",
    "connect_timeout": "seconds to try before the server was ever reached (300)",
    "reconnect_timeout": "seconds to try after contact with the server was lost (300)",
    "rank": "wished order among the nodes, from 0",
    "node_id": "fixed identity: a new agent with the same id takes the old one's place",
    "node_unit": "world sizes are multiples of this (1)",
    "expected_nodes": "names separated by ; or +: the first last call ends when all are in",
    "below_min": "after a failure that leaves too few nodes: stop (default) or wait",
    "worker_store": "who serves the workers' store: rank0 (default) or server",
    "token_file": "file with the token that proves this node to the server, and the server to it",
    "tls_ca": "PEM file with the authorities of the server's certificate, or system; turns TLS on",
    "tls_cert": "PEM file with this node's certificate, for servers that ask for one",
    "tls_key": "PEM file with its key (in tls_cert)",
    "tls_server_name": "name in the server's certificate, if that is not the endpoint's host",
}

IGNORED = {"timeout"}
"""torch always adds it, for the etcd backend."""

C10D_ONLY = {"store_type", "is_host", "heartbeat_timeout"}
"""Without meaning here: no agent ever hosts the rendezvous."""

WORKER_STORES = ("rank0", "server")


@dataclass(frozen=True)
class Conf:
    """The settings of one agent. Durations in seconds."""

    options: dict[str, Any]
    """For `NodeOptions`."""
    credentials: Credentials
    close_timeout_s: float
    read_timeout_s: float
    warnings: tuple[str, ...]


def read(config: Mapping[str, object], environ: Mapping[str, str]) -> Conf:
    """Read the settings of an agent.

    Args:
        config: what torchrun parsed from --rdzv-conf.
        environ: the environment, for `RDZV_<KEY>`.

    Raises:
        ValueError: a key is unknown (the nearest known one is named), a value is wrong, or the names
            of files for the credentials do not go together.
    """
    for key in config:
        if key not in KEYS and key not in IGNORED and key not in C10D_ONLY:
            raise ValueError(_unknown(key))
    values = {
        key: environ[f"RDZV_{key.upper()}"] for key in KEYS if environ.get(f"RDZV_{key.upper()}")
    }
    values |= {key: str(value) for key, value in config.items() if key in KEYS}
    warned = sorted(C10D_ONLY & config.keys())
    return Conf(
        options=_options(values),
        credentials=Credentials.find(
            {}, **{field.name: values.get(field.name) for field in fields(Credentials)}
        ),
        close_timeout_s=_number(values, "close_timeout", 30.0),
        read_timeout_s=_number(values, "read_timeout", 60.0),
        warnings=tuple(
            f"--rdzv-conf {key} belongs to the c10d backend and has no effect here"
            for key in warned
        ),
    )


def _options(values: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "lease_s": _lease_s(values),
        "join_timeout_s": _number(values, "join_timeout", 600.0),
        "last_call_timeout_s": _number(values, "last_call_timeout", 30.0),
        "connect_timeout_s": _number(values, "connect_timeout", 300.0),
        "reconnect_timeout_s": _number(values, "reconnect_timeout", 300.0),
        "node_id": values.get("node_id", ""),
        "node_unit": _integer(values, "node_unit", 1),
        "below_min": _choice(values, "below_min", ("stop", "wait")),
        "worker_store": _choice(values, "worker_store", WORKER_STORES),
        "expected_nodes": tuple(
            name for name in re.split(r"[;+\s]+", values.get("expected_nodes", "")) if name
        ),
    }
    if "rank" in values:
        options["rank"] = _integer(values, "rank", 0)
    return options


def _lease_s(values: Mapping[str, str]) -> float:
    """torch's two keys for what is one number here."""
    interval_s = _number(values, "keep_alive_interval", 5.0)
    attempts = _integer(values, "keep_alive_max_attempt", 3)
    for key, value in (("keep_alive_interval", interval_s), ("keep_alive_max_attempt", attempts)):
        if not value:
            raise ValueError(
                f"--rdzv-conf {key}={values[key]}: must be above 0; interval times attempts is how "
                "long a node may be silent"
            )
    return interval_s * attempts


def _unknown(key: str) -> str:
    return f"unknown --rdzv-conf key {key!r}: {nearest(key, KEYS)}known keys: {', '.join(sorted(KEYS))}"


def nearest(key: str, known: Iterable[str]) -> str:
    """`did you mean 'rank'? `, or nothing if nothing is near."""
    found = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}? " if found else ""


def _number(values: Mapping[str, str], key: str, default: float) -> float:
    text = values.get(key)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"--rdzv-conf {key}={text}: must be a number of seconds, 0 or more")
    return number


def _integer(values: Mapping[str, str], key: str, default: int) -> int:
    text = values.get(key)
    if text is None:
        return default
    if not text.isdecimal():
        raise ValueError(f"--rdzv-conf {key}={text}: must be a whole number, 0 or more")
    return int(text)


def _choice(values: Mapping[str, str], key: str, choices: tuple[str, ...]) -> str:
    text = values.get(key, choices[0])
    if text not in choices:
        raise ValueError(f"--rdzv-conf {key}={text}: must be one of {', '.join(choices)}")
    return text
