"""Structured logs on stderr: one line per event, with run, node and fence on each.

Everything a client may have written is escaped and cut here, whatever its message allowed, and quoted by
the renderer: a line cannot be forged, and none is endless (T16).
"""

import logging
import sys
from typing import Any, Literal

import structlog

from rdzv_proto.text import visible
from rdzv_server.core.events import Report

TEXT_CHARS_MAX = 512
"""Of one value: a sentence of ours with three names of the longest kind."""

Format = Literal["text", "json"]
_FIRST = ["timestamp", "level", "event", "run", "node", "fence"]
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""From the least important on."""

_level = "info"
"""In force."""


def set_up(form: Format, level: str) -> None:
    """Configure logging for this process.

    Args:
        form: `text` (logfmt) or `json`, one object per line.
        level: `debug`, `info`, `warning` or `error`.
    """
    renderer = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.processors.LogfmtRenderer(key_order=_FIRST, drop_missing=True)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _escape,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    set_level(level)


def set_level(level: str) -> None:
    """Write what is at least as important, from now on.

    Args:
        level: `debug`, `info`, `warning` or `error`.
    """
    global _level
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]))
    _level = level


def level() -> str:
    """In force now."""
    return _level


def debug(name: str, **fields: object) -> None:
    """Write an event that is told only when somebody looks closely; costs next to nothing otherwise."""
    if _level == "debug":
        event(name, "debug", **fields)


def write(report: Report) -> None:
    """Write a report of the core."""
    logger = structlog.get_logger()
    logger.log(
        LEVELS[report.level],
        report.event,
        run=report.run,
        node=report.node,
        fence=report.fence,
        **report.fields,
    )


def event(name: str, level: str = "info", **fields: object) -> None:
    """Write an event of the shell itself."""
    structlog.get_logger().log(
        LEVELS[level], name, **{"run": "-", "node": "-", "fence": "-", **fields}
    )


def _escape(_: Any, __: str, fields: Any) -> Any:
    for name, value in fields.items():
        if isinstance(value, str) and name != "exception":
            fields[name] = visible(value, TEXT_CHARS_MAX)
    return fields
