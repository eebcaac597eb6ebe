"""Plays the commands of a scenario. Each is one line of plain words; `COMMANDS` is the list of them."""

import re
from collections.abc import Callable
from typing import Any

from rdzv_proto.messages import (
    Barrier,
    CloseRun,
    Finished,
    Join,
    KvAdd,
    KvCas,
    KvDelete,
    KvGet,
    KvSet,
    KvWait,
    Leave,
    NcclGet,
    NcclPut,
    NcclReady,
    Policy,
)
from rdzv_server.core.settings import Settings
from tests.scenarios.script import Block
from tests.scenarios.stage import Actor, Stage

Options = dict[str, str]

_SET_UP = re.compile(r"run (\w+)((?: [\w-]+=\S+)*)")
_AT = re.compile(r"at ([\d.]+)s  ?(.+)")
_UNTIL = re.compile(r"until ([\d.]+)s")


class Player:
    """One scenario."""

    def __init__(self) -> None:
        self.stage: Stage | None = None

    def play(self, block: Block) -> list[str]:
        """What comes of a block's commands, as lines.

        Raises:
            ValueError: a command that is none.
        """
        said: list[str] = []
        for command in block.commands:
            found = _SET_UP.fullmatch(command)
            if found:
                self.stage = _stage(found[1], _options(found[2]))
            elif self.stage is None:
                raise ValueError("a scenario begins with a line `run NAME ...`")
            elif command == "status":
                said += self._heard() + _status(self.stage)
            else:
                self._command(self.stage, command)
        return said + self._heard()

    def _command(self, stage: Stage, command: str) -> None:
        passed = _UNTIL.fullmatch(command)
        if passed:
            stage.until(float(passed[1]))
            return
        timed = _AT.fullmatch(command)
        if timed:
            stage.until(float(timed[1]))
            command = timed[2].strip()
        for pattern, action in COMMANDS.items():
            found = re.fullmatch(pattern, command)
            if found:
                action(stage, *found.groups())
                return
        raise ValueError(f"no such command: {command!r}")

    def _heard(self) -> list[str]:
        """Who was told what, when; those who were told the same in one moment share a line."""
        if self.stage is None:
            return []
        rows: list[tuple[str, list[str], str]] = []
        for second, who, what in self.stage.lines:
            at = f"{second:.1f}s"
            same = next((r for r in rows if (r[0], r[2]) == (at, what) and who not in r[1]), None)
            if same is not None:
                same[1].append(who)
            else:
                rows.append((at, [who], what))
        self.stage.lines.clear()
        return [f"{at:>6}  {_named(who)} {_plural(what, len(who))}" for at, who, what in rows]


def _named(who: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(who[:-1]), who[-1])))


def _plural(what: str, count: int) -> str:
    for one, many in (("is ", "are "), ("learns ", "learn "), ("waits", "wait"), ("passes ", "pass "),
                      ("gets ", "get "), ("stands ", "stand "), ("resumes ", "resume ")):  # fmt: skip
        if count > 1 and what.startswith(one):
            return many + what[len(one) :]
    return what


def _options(text: str) -> Options:
    return dict(part.split("=", 1) for part in text.split())


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def _stage(run: str, options: Options) -> Stage:
    def ms(name: str, default: str) -> int:
        return round(_seconds(options.pop(name, default)) * 1000)

    least = int(options.pop("min"))
    policy = Policy(
        min_nodes=least,
        max_nodes=int(options.pop("max", least)),
        node_unit=int(options.pop("unit", "1")),
        join_timeout_ms=ms("join-timeout", "30s"),
        last_call_timeout_ms=ms("last-call", "2s"),
        below_min="wait" if options.pop("below-min", "stop") == "wait" else "stop",
    )
    settings = Settings(run_keep_s=_seconds(options.pop("keep", "600s")))
    lease_s = _seconds(options.pop("lease", "5s"))
    if options:
        raise ValueError(f"no such settings: {', '.join(options)}")
    return Stage(settings, run, policy, lease_s)


def _status(stage: Stage) -> list[str]:
    """As `rdzv status` sees it."""
    row, members = stage.status(stage.run_id), stage.members(stage.run_id)
    lines = [f"        run {row.run}: {row.phase}, generation {row.fence}"]
    for member in members.values():
        rank = "" if member.group_rank is None else f" rank {member.group_rank}"
        lines.append(f"        {member.node_id}: {member.state}{rank}")
    return lines


# --- commands ---------------------------------------------------------------------------------


def _joins(stage: Stage, names: str, options: str) -> None:
    more = _options(options)
    hint = more.get("rank")
    policy = stage.policy
    if "min" in more:
        policy = Policy(min_nodes=int(more["min"]), max_nodes=int(more.get("max", more["min"])))
    for name in _names(names):
        actor = stage.actors.get(name)
        if actor is None:
            actor = stage.process(name)
            stage.hello(actor)
        rank = None if hint is None else int(hint)
        stage.ask(actor, Join(policy=policy, last=actor.fence, rank_hint=rank))


def _names(text: str) -> list[str]:
    return re.split(r", | and ", text)


def _starts_again(stage: Stage, name: str) -> None:
    actor = stage.process(name)
    stage.hello(actor)
    stage.ask(actor, Join(policy=stage.policy))


def _each(action: Callable[[Stage, Actor], None]) -> Callable[..., None]:
    def act(stage: Stage, names: str) -> None:
        for name in _names(names):
            action(stage, stage.actors[name])

    return act


def _silent(stage: Stage, actor: Actor) -> None:
    actor.silent = True


def _finishes(stage: Stage, actor: Actor) -> None:
    assert actor.fence is not None
    stage.ask(actor, Finished(fence=actor.fence))


def _leaves(stage: Stage, name: str, kind: Any, code: str | None) -> None:
    exit_code = None if code is None else int(code)
    stage.ask(stage.actors[name], Leave(kind=kind, exit_code=exit_code))


def _closes(stage: Stage, name: str, why: str | None) -> None:
    stage.ask(stage.actors[name], CloseRun(run=stage.run_id, detail=why or ""))


def _old_fence(stage: Stage, name: str, key: str, number: str) -> None:
    actor = stage.actors[name]
    fence = type(actor.fence)(1, int(number)) if actor.fence is not None else None
    stage.ask(actor, KvSet(fence=fence, key=key, value=b"late"))


def _sets(stage: Stage, name: str, key: str, value: str, run: str | None) -> None:
    actor = stage.actors[name]
    fence = None if run else actor.fence
    stage.ask(actor, KvSet(fence=fence, key=key, value=value.encode()))


def _gets(stage: Stage, name: str, key: str, run: str | None, waiting: str | None) -> None:
    actor = stage.actors[name]
    wait_ms = round(_seconds(waiting or "0s") * 1000)
    stage.ask(actor, KvGet(fence=None if run else actor.fence, key=key, timeout_ms=wait_ms))


def _waits(stage: Stage, name: str, keys: str, seconds: str) -> None:
    actor = stage.actors[name]
    wait_ms = round(_seconds(seconds) * 1000)
    stage.ask(actor, KvWait(fence=actor.fence, keys=_names(keys), timeout_ms=wait_ms))


def _adds(stage: Stage, name: str, delta: str, key: str) -> None:
    actor = stage.actors[name]
    stage.ask(actor, KvAdd(fence=actor.fence, key=key, delta=int(delta)))


def _deletes(stage: Stage, name: str, key: str) -> None:
    actor = stage.actors[name]
    stage.ask(actor, KvDelete(fence=actor.fence, keys=[key]))


def _swaps(stage: Stage, name: str, key: str, old: str, new: str) -> None:
    actor = stage.actors[name]
    expected = None if old == "nothing" else old.encode()
    ask = KvCas(fence=actor.fence, key=key, value=new.encode(), expected=expected)
    stage.ask(actor, ask)


def _meets(stage: Stage, names: str, barrier: str, options: str) -> None:
    more = _options(options)
    for name in _names(names):
        actor = stage.actors[name]
        ask = Barrier(
            fence=actor.fence,
            name=barrier,
            members=[int(rank) for rank in more.get("members", "").split(",") if rank],
            payload=more["gives"].encode() if "gives" in more else None,
            vote=more["vote"] == "yes" if "vote" in more else None,
            timeout_ms=round(_seconds(more.get("timeout", "5s")) * 1000),
        )
        stage.ask(actor, ask)


def _wants_id(stage: Stage, name: str, group: str, rank: str, size: str) -> None:
    actor = stage.actors[name]
    assert actor.fence is not None
    ask = NcclGet(
        fence=actor.fence, group=group, rank=int(rank), nranks=int(size), timeout_ms=5000,
        init_timeout_ms=10_000,
    )  # fmt: skip
    stage.ask(actor, ask)


def _mints(stage: Stage, name: str, value: str, group: str, rank: str, attempt: str) -> None:
    actor = stage.actors[name]
    assert actor.fence is not None
    ask = NcclPut(
        fence=actor.fence, group=group, attempt=int(attempt), rank=int(rank), index=0,
        id=value.encode().ljust(128, b"."),
    )  # fmt: skip
    stage.ask(actor, ask)


def _ready(stage: Stage, name: str, group: str, rank: str, attempt: str) -> None:
    actor = stage.actors[name]
    assert actor.fence is not None
    ask = NcclReady(fence=actor.fence, group=group, attempt=int(attempt), rank=int(rank))
    stage.ask(actor, ask)


def _server_stops(stage: Stage, seconds: str) -> None:
    stage.stall(float(seconds))


def _server_restarts(stage: Stage, how: str, seconds: str) -> None:
    stage.begin_again(float(seconds), remembers=how == "with")


_WHO = r"(\w+(?:, \w+)*(?: and \w+)?)"
COMMANDS: dict[str, Callable[..., None]] = {
    _WHO + r" joins?((?: \w+=\S+)*)": _joins,
    r"(\w+) starts again": _starts_again,
    _WHO + r" loses? (?:its|their) connections?": _each(lambda stage, actor: stage.drop(actor)),
    _WHO + r" comes? back": _each(lambda stage, actor: stage.hello(actor)),
    _WHO + r" falls? silent": _each(_silent),
    _WHO + r" asks? again": _each(lambda stage, actor: stage.ask_again(actor)),
    _WHO + r" finish(?:es)?": _each(_finishes),
    r"(\w+) leaves: (finished|failed|drained)(?: with exit code (\d+))?": _leaves,
    r"(\w+) closes the run(?:: (.+))?": _closes,
    r"(\w+) sets (\w+) to (\w+)( in the run)?": _sets,
    r"(\w+) sets (\w+) in generation (\d+)": _old_fence,
    r"(\w+) gets (\w+)( in the run)?(?: within ([\d.]+s))?": _gets,
    r"(\w+) waits for (.+) within ([\d.]+s)": _waits,
    r"(\w+) adds (-?\d+) to (\w+)": _adds,
    r"(\w+) deletes (\w+)": _deletes,
    r"(\w+) swaps (\w+) from (\w+) to (\w+)": _swaps,
    _WHO + r" meets? at (\w+)((?: \w+=\S+)*)": _meets,
    r"(\w+) wants the id of (\w+) as rank (\d+) of (\d+)": _wants_id,
    r"(\w+) mints (\w+) for (\w+) as rank (\d+) in attempt (\d+)": _mints,
    r"(\w+) is ready in (\w+) as rank (\d+) in attempt (\d+)": _ready,
    r"the server does not run for ([\d.]+) s": _server_stops,
    r"the server restarts (with|without) its memory after ([\d.]+) s": _server_restarts,
}
"""Patterns, and what is done. Several nodes: `a, b and c join`."""
