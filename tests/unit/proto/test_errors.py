"""The error table: one row per code, one client exception per code, and sane advice."""

import ast
import inspect

import pytest

from rdzv_client import errors as client
from rdzv_proto import errors
from rdzv_proto.errors import ERRORS, ErrorCode, ErrorInfo, Retry, info

ROWS = pytest.mark.parametrize(
    "row", ERRORS.values(), ids=[row.code.name for row in ERRORS.values()]
)


def client_classes() -> list[type[client.RdzvError]]:
    return [
        kind
        for kind in vars(client).values()
        if isinstance(kind, type) and issubclass(kind, client.RdzvError) and "code" in vars(kind)
    ]


def test_every_code_has_exactly_one_row() -> None:
    assert set(ERRORS) == set(ErrorCode)
    assert all(row.code is code for code, row in ERRORS.items())
    calls = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(errors)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == ErrorInfo.__name__
    ]
    assert len(calls) == len(ErrorCode), "a row that is there twice would win silently"


def test_codes_on_the_wire_never_change() -> None:
    """They are in released clients. A new code may be added here; none may be altered."""
    assert {code.name: code.value for code in ErrorCode} == {
        "MALFORMED": 1, "UNSUPPORTED": 2, "UNKNOWN_RUN": 3, "SESSION_LOST": 4,
        "STALE_GENERATION": 5, "FENCED": 6, "RUN_CLOSED": 7, "JOIN_TIMEOUT": 8,
        "LIMIT_EXCEEDED": 11, "SHUTTING_DOWN": 12, "INTERNAL": 13, "UNAUTHENTICATED": 14,
        "UNKNOWN_EPOCH": 15, "POLICY_MISMATCH": 17, "DUPLICATE_RANK": 18, "RUN_FINISHED": 19,
        "RUN_FAILED": 20, "WAIT_TIMEOUT": 21, "NOT_A_MEMBER": 22, "SUPERSEDED": 23,
        "FRAME_TOO_LARGE": 24, "NOT_A_NUMBER": 25, "CONNECTION_LOST": 101, "REQUEST_TIMEOUT": 102,
        "BARRIER_TIMEOUT": 9, "BARRIER_MISMATCH": 10, "BAD_ROUND": 16, "BARRIER_BROKEN": 26,
        "ID_MISMATCH": 27, "NCCL_VERSION_MISMATCH": 28, "DUPLICATE_ID": 29, "MINTER_LOST": 30,
        "MINT_FAILED": 31, "ID_FAILED": 32, "ID_TIMEOUT": 33, "ALREADY_USED": 34,
        "UNROUTABLE_ROOT": 35, "SERVER_BUSY": 36, "NOT_PERMITTED": 37, "NOT_LEADER": 38,
    }  # fmt: skip


@ROWS
def test_every_text_is_there_and_is_a_sentence(row: ErrorInfo) -> None:
    for text in (row.meaning, row.action):
        assert text.strip() == text
        assert text.endswith(".")
        assert len(text) > 10


@ROWS
def test_the_label_holds_the_code(row: ErrorInfo) -> None:
    assert row.label == f"RDZV-E{row.code.value:03d}"


@ROWS
def test_only_what_certainly_did_not_happen_may_be_done_anew(row: ErrorInfo) -> None:
    """Indefinite: nothing but the same request under the same id is safe, and not even that when the
    session is over: its requests are answered with why, and may have been done."""
    session_over = row.code in (
        ErrorCode.SESSION_LOST, ErrorCode.UNKNOWN_EPOCH, ErrorCode.FENCED, ErrorCode.UNAUTHENTICATED,
    )  # fmt: skip
    assert row.definite != (row.retry is Retry.SAME or session_over)


def test_errors_of_the_client_side_are_indefinite_and_numbered_apart() -> None:
    for code, row in ERRORS.items():
        assert row.meaning.startswith("Client side:") == (code > 100)
        if code > 100:
            assert not row.definite


def test_the_codes_that_are_final_are_so() -> None:
    for code in (ErrorCode.FENCED, ErrorCode.UNAUTHENTICATED, ErrorCode.UNSUPPORTED):
        assert ERRORS[code].retry is Retry.NO


def test_what_ends_a_generation_asks_for_a_rejoin() -> None:
    rejoin = {code for code, row in ERRORS.items() if row.retry is Retry.REJOIN}
    assert rejoin == {
        ErrorCode.SESSION_LOST, ErrorCode.STALE_GENERATION, ErrorCode.UNKNOWN_EPOCH,
    }  # fmt: skip


def test_an_unknown_code_reads_as_a_fault_of_the_server() -> None:
    assert info(ErrorCode.FENCED) is ERRORS[ErrorCode.FENCED]
    for code in (0, 999, -1, 1 << 63):
        assert info(code) is ERRORS[ErrorCode.INTERNAL]


def test_every_code_has_exactly_one_client_exception_and_vice_versa() -> None:
    codes = [kind.code for kind in client_classes() if kind is not client.RdzvError]
    assert sorted(codes) == sorted(ErrorCode)


def test_the_kinds_of_client_exceptions_follow_the_advice() -> None:
    for kind in client_classes():
        retry = ERRORS[kind.code].retry
        assert issubclass(kind, client.GenerationEnded) == (retry is Retry.REJOIN)
        if issubclass(kind, client.Final):
            assert retry is Retry.NO
        if issubclass(kind, client.Timeout):
            assert retry in (Retry.LATER, Retry.SAME)


@pytest.mark.torch
def test_the_torch_exceptions_exist() -> None:
    pytest.importorskip("torch")
    from torch.distributed.elastic import rendezvous

    for row in ERRORS.values():
        kind = getattr(rendezvous, row.torch)
        assert issubclass(kind, rendezvous.RendezvousError)
        assert row.torch != "RendezvousGracefulExitError", "it crashes torchrun"
