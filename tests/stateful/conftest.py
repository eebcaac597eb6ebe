"""How much was played is told at the end."""

import pytest

from tests.stateful.machine import Clients


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if Clients.rules_played:
        terminalreporter.write_line(
            f"stateful: {Clients.rules_played} steps of clients, {Clients.steps} events and ticks compared "
            "(in this process)"
        )
