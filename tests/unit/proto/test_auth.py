import hashlib
import hmac
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_proto import auth
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token, Transcript

MASTER = Token(EVERYTHING, bytes(range(32)))
FILE_0600 = stat.S_IFREG | 0o600
TRANSCRIPT = Transcript(b"hello", b"c" * 32, b"n" * 32, Grant(Scope.JOIN, "llama"))

grants = st.builds(Grant, st.sampled_from(Scope), st.text(max_size=20).filter(str.isprintable))


@given(grants)
def test_a_token_is_read_back_as_it_was_written(grant: Grant) -> None:
    token = MASTER.derive(grant)
    assert auth.parse(token.text()) == token
    assert token.key == MASTER.key
    assert len(token.text().split()) == 1


@pytest.mark.parametrize("place", range(0, len(MASTER.text()), 7))
def test_a_damaged_master_token_is_noticed(place: int) -> None:
    text = MASTER.text()
    changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
    with pytest.raises(ValueError, match=r"no rdzv token|damaged"):
        auth.parse(changed)


@pytest.mark.parametrize(
    "text", ["", "hunter2", "rdzv1:::*:", "rdzv1:0011:join:*:AAAA", "rdzv2" * 5]
)
def test_what_is_no_token_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"no rdzv token|damaged") as caught:
        auth.parse(text)
    assert not text or text not in str(caught.value)


def test_a_token_shows_no_secret() -> None:
    assert MASTER.secret.hex() not in repr(MASTER)
    assert repr(MASTER.secret) not in repr(MASTER)
    assert MASTER.key not in MASTER.secret.hex()


@given(grants, grants)
def test_different_grants_have_different_secrets(one: Grant, other: Grant) -> None:
    assert (MASTER.derive(one).secret == MASTER.derive(other).secret) == (one == other)


def test_derivation_is_hkdf() -> None:
    prk = hmac.new(b"rdzv token 1", MASTER.secret, hashlib.sha256).digest()
    okm = hmac.new(prk, b"rdzv join\0llama\x01", hashlib.sha256).digest()
    assert MASTER.derive(Grant(Scope.JOIN, "llama")).secret == okm


def test_nothing_is_derived_from_a_lesser_token() -> None:
    lesser = MASTER.derive(Grant(Scope.ADMIN, "llama"))
    with pytest.raises(ValueError, match="master token"):
        lesser.derive(Grant(Scope.JOIN, "llama"))


def test_scopes_include_those_before_them() -> None:
    order = [Scope.READ, Scope.JOIN, Scope.ADMIN]
    for i, one in enumerate(order):
        for j, other in enumerate(order):
            assert one.includes(other) == (i >= j)


@given(grants, grants)
def test_a_grant_within_another_is_allowed_by_it(one: Grant, other: Grant) -> None:
    if one.within(other):
        assert other.scope.includes(one.scope)
        assert other.covers(one.run)


# --- files ------------------------------------------------------------------------------------


def test_a_file_holds_tokens_comments_and_empty_lines() -> None:
    run = MASTER.derive(Grant(Scope.JOIN, "llama"))
    content = f"# new\n{MASTER.text()}\n\n  {run.text()}  \n".encode()
    assert auth.read(content, FILE_0600, "f") == [MASTER, run]


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o666, 0o602, 0o601])
def test_a_file_that_others_can_read_or_change_is_refused(mode: int) -> None:
    with pytest.raises(ValueError, match=f"mode {mode:04o}.*chmod 600 f"):
        auth.read(MASTER.text().encode(), stat.S_IFREG | mode, "f")


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_owner_and_group_may_read_it(mode: int) -> None:
    assert auth.read(MASTER.text().encode(), stat.S_IFREG | mode, "f") == [MASTER]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "0 tokens"),
        (b"# nothing\n", "0 tokens"),
        (b"\xff\xfe", "line 1: that is no rdzv token"),
        (f"{MASTER.text()}\nhunter2\n".encode(), "line 2: that is no rdzv token"),
        (b"x" * (auth.FILE_BYTES_MAX + 1), "longer than"),
        (f"{MASTER.text()}\n".encode() * 17, "17 tokens"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(content: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        auth.read(content, FILE_0600, "f")


def test_a_device_or_a_pipe_is_no_token_file() -> None:
    with pytest.raises(ValueError, match="no ordinary file"):
        auth.read(b"", stat.S_IFCHR | 0o600, "/dev/zero")


def test_the_first_token_that_is_good_for_it_is_chosen() -> None:
    a, b = MASTER.derive(Grant(Scope.JOIN, "a")), MASTER.derive(Grant(Scope.JOIN, "b"))
    assert auth.choose([a, b, MASTER], Grant(Scope.JOIN, "b")) is b
    assert auth.choose([a, b, MASTER], Grant(Scope.ADMIN, "b")) is MASTER
    assert auth.choose([a, b], Grant(Scope.READ)) is None


# --- proofs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        replace(TRANSCRIPT, hello=b"hellp"),
        replace(TRANSCRIPT, challenge=b"d" * 32),
        replace(TRANSCRIPT, nonce=b"m" * 32),
        replace(TRANSCRIPT, grant=Grant(Scope.ADMIN, "llama")),
        replace(TRANSCRIPT, grant=Grant(Scope.JOIN, "llamb")),
        replace(TRANSCRIPT, certificate=b"x" * 32),
        replace(TRANSCRIPT, hello=b"helloc", challenge=b"c" * 31),
    ],
)
def test_a_proof_is_good_for_its_own_transcript_only(other: Transcript) -> None:
    assert TRANSCRIPT.client_proof(MASTER.secret) != other.client_proof(MASTER.secret)
    assert TRANSCRIPT.server_proof(MASTER.secret) != other.server_proof(MASTER.secret)


def test_a_clients_proof_cannot_be_sent_back_as_the_servers() -> None:
    assert TRANSCRIPT.client_proof(MASTER.secret) != TRANSCRIPT.server_proof(MASTER.secret)


def test_another_secret_makes_another_proof() -> None:
    assert TRANSCRIPT.client_proof(b"a" * 32) != TRANSCRIPT.client_proof(b"b" * 32)


def test_a_certificate_is_known_by_its_digest() -> None:
    assert auth.certificate_digest(b"der") == hashlib.sha256(b"der").digest()
    assert auth.certificate_digest(None) == b""
