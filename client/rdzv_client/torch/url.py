"""`rdzv://HOST:29500/RUN?min=2&max=4`: what an `init_method` says, as options of a node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from rdzv_client.credentials import Credentials
from rdzv_client.torch import conf

SCHEME = "rdzv"
FORM = "rdzv://HOST:29500/RUN?min=2&max=4"

OWN: dict[str, str] = {
    "min": "smallest world",
    "max": "largest world (as min)",
    "timeout": "another name of join_timeout",
    "world_size": "min and max in one; also what init_process_group was given",
    "local_addr": "address of this process for the others, as torchrun's --local-addr",
}
"""Parameters besides those of `--rdzv-conf`."""

NOT_GIVEN = "-1"
"""torch writes this where it was given no world size."""


@dataclass(frozen=True)
class Target:
    """One run to take part in, and how."""

    url: str
    """Without what torch added; for texts."""
    servers: str
    """`host:port`, several separated by commas, or empty for the default."""
    run: str
    options: dict[str, Any]
    """For `NodeOptions`; a rank in it must come out as the node's rank."""
    credentials: Credentials
    local_addr: str
    close_timeout_s: float

    @property
    def rank(self) -> int | None:
        """The rank asked for."""
        rank: int | None = self.options.get("rank")
        return rank


def parse(url: str, environ: Mapping[str, str]) -> Target:
    """Read an `init_method`.

    Args:
        url: with `rank` and `world_size` added by torch if it was given them.
        environ: for `RDZV_<KEY>`, as under torchrun.

    Raises:
        ValueError: naming the parameter, the nearest known one, or the right form.
    """
    parts = urlsplit(url)
    shown = url.partition("?")[0]
    run = unquote(parts.path.strip("/"))
    if parts.scheme != SCHEME or not run:
        raise ValueError(f"init_method {url!r}: the form is {FORM}")
    values = _values(shown, parts.query)
    own = {key: values.pop(key) for key in OWN if key in values}
    if "timeout" in own:
        if "join_timeout" in values:
            raise ValueError(f"{shown}: timeout and join_timeout are the same; give one of them")
        values["join_timeout"] = own["timeout"]
    try:
        settings = conf.read(values, environ)
    except ValueError as error:
        raise ValueError(f"{shown}: {str(error).removeprefix('--rdzv-conf ')}") from None
    smallest, largest = _sizes(shown, own)
    rank = settings.options.get("rank")
    if rank is not None and rank >= largest:
        raise ValueError(f"{shown}: rank={rank} does not fit into a world of {largest}")
    return Target(
        url=shown,
        servers=unquote(parts.netloc),
        run=run,
        options={**settings.options, "min_nodes": smallest, "max_nodes": largest},
        credentials=settings.credentials,
        local_addr=own.get("local_addr", ""),
        close_timeout_s=settings.close_timeout_s,
    )


def _values(shown: str, query: str) -> dict[str, str]:
    values: dict[str, str] = {}
    known = [*OWN, *conf.KEYS]
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            hint = conf.nearest(key, known)
            raise ValueError(
                f"{shown}: unknown parameter {key!r}: {hint}known: {', '.join(sorted(known))}"
            )
        if key in values:
            raise ValueError(f"{shown}: {key} is given twice")
        if not value:
            raise ValueError(f"{shown}: {key} has no value")
        if (key, value) != ("world_size", NOT_GIVEN):
            values[key] = value
    return values


def _sizes(shown: str, own: Mapping[str, str]) -> tuple[int, int]:
    """Smallest and largest world."""
    sizes = {key: _size(shown, key, own[key]) for key in ("min", "max", "world_size") if key in own}
    if "world_size" in sizes:
        size = sizes["world_size"]
        if not sizes.get("min", size) <= size <= sizes.get("max", size):
            given = ", ".join(f"{key}={sizes[key]}" for key in ("min", "max") if key in sizes)
            raise ValueError(f"{shown}: world_size={size} does not agree with {given}")
        return size, size
    if "min" not in sizes:
        raise ValueError(f"{shown}: min is missing; the form is {FORM}, or give a world_size")
    smallest, largest = sizes["min"], sizes.get("max", sizes["min"])
    if smallest > largest:
        raise ValueError(f"{shown}: min={smallest} is larger than max={largest}")
    return smallest, largest


def _size(shown: str, key: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{shown}: {key}={text}: must be a whole number, 1 or more")
    return int(text)
