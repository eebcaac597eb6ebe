"""Whose keys the keys of a run are: they outlive generations, but not the run, and not a server without memory."""

from collections.abc import Mapping

from rdzv_server.core.model import Run


class Lives:
    """Of the keys of all runs of one history. A life begins when a run is opened, or when the first that happens after a
    run's end drops the keys of before. Lives are numbered from 1, over all runs."""

    def __init__(self) -> None:
        self._last = 0
        self._over: dict[str, bool] = {}
        """Of each run that there is: what it holds is of a run that has ended."""
        self._numbers: dict[str, list[int]] = {}

    def resumed(self, runs: Mapping[str, Run]) -> None:
        """The server has started: what it found stored goes on, also where it had got further before it crashed."""
        self._over = {run.id: run.kv_over for run in runs.values() if run.id in self._numbers}
        self.note(runs)

    def note(self, runs: Mapping[str, Run]) -> None:
        """After a step of the server."""
        over = self._over
        for run in runs.values():
            before = over.get(run.id)
            if before is None or (before and not run.kv_over):
                self._last += 1
                self._numbers.setdefault(run.id, []).append(self._last)
            over[run.id] = run.kv_over
        if len(over) > len(runs):
            for gone in over.keys() - runs.keys():
                del over[gone]

    def of(self, run: str) -> tuple[int, bool]:
        """The number of the present life, or of the last one (0: there was none), and whether it is over."""
        numbers = self._numbers.get(run)
        return (numbers[-1] if numbers else 0), self._over.get(run, True)

    def after(self, run: str, number: int) -> list[int]:
        """Those that came after it."""
        return [one for one in self._numbers.get(run, ()) if one > number]
