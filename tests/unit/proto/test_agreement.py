"""Which version two sides speak, whatever each of them can."""

import itertools

import pytest

from rdzv_proto import agreement, codec
from rdzv_proto.agreement import SPOKEN, Spoken, announced, versions
from rdzv_proto.codec import Codec
from rdzv_proto.framing import PREAMBLE, preamble
from rdzv_proto.messages import HelloAdmin, HelloNode, HelloWorker
from rdzv_proto.versions import V1, Version

CODECS = {n: Codec(Version(n, V1.requests, V1.replies, V1.pushes)) for n in range(1, 5)}
RANGES = [(low, high) for low in CODECS for high in CODECS if low <= high]


def spoken(low: int, high: int) -> Spoken:
    return Spoken([CODECS[n] for n in range(low, high + 1)])


@pytest.mark.parametrize(("ours", "theirs"), list(itertools.product(RANGES, RANGES)))
def test_s34_both_sides_agree_on_the_newest_that_both_speak(
    ours: tuple[int, int], theirs: tuple[int, int]
) -> None:
    common = set(range(ours[0], ours[1] + 1)) & set(range(theirs[0], theirs[1] + 1))
    found = spoken(*ours).agree(*theirs)
    assert (found is None) == (not common)
    if found is not None:
        assert found.version == max(common)
        back = spoken(*theirs).agree(*ours)
        assert back is found, "it does not matter who asks"


@pytest.mark.parametrize(
    ("oldest", "newest"), [(0, 0), (-5, -1), (5, 2), (5, 9), (1 << 62, 1 << 63)]
)
def test_numbers_that_no_client_says_lead_to_no_version(oldest: int, newest: int) -> None:
    assert spoken(1, 4).agree(oldest, newest) is None


@pytest.mark.parametrize(
    "hello",
    [
        HelloNode(run="r", node_id="n", name="n", incarnation=bytes(16)),
        HelloAdmin(),
    ],
    ids=["node", "admin"],
)
def test_a_hello_says_the_oldest_in_its_frame_and_the_newest_in_a_field(
    hello: HelloNode | HelloAdmin,
) -> None:
    for low, high in RANGES:
        side = spoken(low, high)
        fields = {name: getattr(hello, name) for name in hello.__struct_fields__}
        said = type(hello)(**(fields | {"protocol_max": side.protocol_max}))
        assert announced(said, side.oldest.encode(7, said)[4:]) == (low, high)


def test_a_client_of_one_version_says_its_hello_as_ever() -> None:
    """`protocol_max` is left out: the frames of version 1 stay the same."""
    assert [spoken(n, n).protocol_max for n in CODECS] == [0, 0, 0, 0]
    hello = HelloAdmin(client="c")
    assert announced(hello, codec.encode(1, hello)[4:]) == (1, 1)


def test_a_newest_below_the_oldest_is_the_oldest() -> None:
    hello = HelloAdmin(protocol_max=2)
    assert announced(hello, CODECS[3].encode(1, hello)[4:]) == (3, 3)


@pytest.mark.parametrize("numbers", [[], [1, 3], [2, 1], [1, 1]])
def test_versions_follow_each_other(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="must follow each other"):
        Spoken([CODECS[n] for n in numbers])


def test_a_preamble_is_good_if_the_hello_behind_it_may_name_a_version_of_ours() -> None:
    assert [spoken(2, 3).may_agree(n) for n in range(6)] == [
        False, True, True, True, False, False,
    ]  # fmt: skip


def test_versions_in_words() -> None:
    assert versions(1, 1) == str(spoken(1, 1)) == "version 1"
    assert versions(1, 2) == str(spoken(1, 2)) == "versions 1 to 2"


def test_a_side_knows_its_versions_by_their_numbers() -> None:
    side = spoken(2, 3)
    assert (side.oldest.version, side.newest.version, side.protocol_max) == (2, 3, 3)
    assert [side.get(n) is CODECS.get(n) for n in range(6)] == [
        True, False, True, True, False, True,
    ]  # fmt: skip


def test_this_software_speaks_its_newest_version_and_at_most_the_one_before() -> None:
    assert SPOKEN.newest is codec.CURRENT
    assert 0 <= SPOKEN.newest.version - SPOKEN.oldest.version <= 1
    assert agreement.SPOKEN.oldest.version == 1, "frozen frames of version 1 are served"


def test_the_preamble_says_the_oldest() -> None:
    assert preamble(SPOKEN.oldest.version) == PREAMBLE
    assert preamble(7) == b"RDZV\x07\0\0\0"


def test_all_hellos_can_say_it() -> None:
    for kind in (HelloNode, HelloWorker, HelloAdmin):
        assert "protocol_max" in kind.__struct_fields__
