"""One key as the server means it: what an operation does to it, and whether its answer fits.

A state is `(value, revision, exact)`. Numbers of changes are counted for all keys of a space together, so
what is known of a key's revision after a change that did not tell it is only a lower bound (`exact` False).
"""

from typing import Any

from tests.sim.check.entries import Entry

State = tuple[str | None, int, bool]

NOT_THERE: State = (None, 0, True)


def step(state: State, op: Entry) -> State | None:
    """The state after an operation, or None if its answer cannot come of that state.

    Args:
        state: before.
        op: an operation that happened; of one whose outcome is not known the answer is not looked at.
    """
    value, revision, _ = state
    answer = op.result if op.known else {}
    match op.op:
        case "get":
            return _looked(state, answer)
        case "put":
            return _changed(op.args["value"], revision, answer)
        case "add":
            total = str(int(value or "0") + int(op.args.get("delta", 1)))
            if "value" in answer and str(answer["value"]) != total:
                return None
            return _changed(total, revision, answer)
        case "append":
            joined = (value or "") + op.args["value"]
            if "length" in answer and answer["length"] != len(joined):
                return None
            return _changed(joined, revision, answer)
        case "delete":
            return _deleted(state, answer)
        case "cas":
            return _compared(state, op.args, answer)
        case _:
            raise ValueError(f"{op.op} is no operation on a key")


def _changed(value: str | None, revision: int, answer: dict[str, Any]) -> State | None:
    told = answer.get("revision")
    if told is None:
        return value, revision + 1, False
    return (value, told, True) if told > revision else None


def _looked(state: State, answer: dict[str, Any]) -> State | None:
    value, revision, exact = state
    if "value" in answer and answer["value"] != value:
        return None
    told = answer.get("revision")
    if told is None or value is None:
        return state
    if told != revision and (exact or told < revision):
        return None
    return value, told, True


def _deleted(state: State, answer: dict[str, Any]) -> State | None:
    value, revision, _ = state
    if "deleted" in answer and answer["deleted"] != (value is not None):
        return None
    return state if value is None else _changed(None, revision, answer)


def _compared(state: State, args: dict[str, Any], answer: dict[str, Any]) -> State | None:
    value, revision, exact = state
    swapped = answer.get("swapped")
    wanted = args.get("revision")
    if wanted is not None:
        here = 0 if value is None else revision
        match = wanted == here if exact or value is None else wanted >= here
        certain = exact or value is None or not match
    else:
        match, certain = args.get("expected") == value, True
    if swapped is None:  # not known: it did what it would have done
        return _changed(args["value"], revision, {}) if match else state
    if swapped:
        return _changed(args["value"], revision, answer) if match else None
    if match and certain:
        return None
    return _looked(state, {k: answer[k] for k in ("value", "revision") if k in answer})
