"""Which versions of the protocol a side speaks, and how two sides agree on one.

A client says in its hello which versions it speaks: the hello's frame is written in the oldest, the field
`protocol_max` is the newest. The server takes the newest that both speak; the frame of its `welcome` says which.
Both numbers of the client are in the hello's body, which a proof covers (see `auth`): whoever stands between cannot
make the two sides speak an older version than they could. Where they have none in common the server says goodbye,
naming what each speaks.
"""

from collections.abc import Sequence

from rdzv_proto import codec
from rdzv_proto.codec import Codec
from rdzv_proto.messages import HelloAdmin, HelloNode, HelloWorker


class Spoken:
    """The versions that one side speaks.

    Args:
        codecs: one for each, from the oldest to the newest, without a gap.

    Raises:
        ValueError: there is none, or a gap.
    """

    def __init__(self, codecs: Sequence[Codec]) -> None:
        numbers = [one.version for one in codecs]
        if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise ValueError(f"versions that are spoken must follow each other: {numbers}")
        self.oldest, self.newest = codecs[0], codecs[-1]
        self._by_number = dict(zip(numbers, codecs, strict=True))

    def __str__(self) -> str:
        return versions(self.oldest.version, self.newest.version)

    @property
    def protocol_max(self) -> int:
        """For a hello: see there."""
        return 0 if self.newest is self.oldest else self.newest.version

    def get(self, number: int) -> Codec | None:
        """The codec of a version; None: it is not spoken."""
        return self._by_number.get(number)

    def may_agree(self, oldest: int) -> bool:
        """Whether a side that speaks no version before this one may speak one of ours: what a preamble tells."""
        return 0 < oldest <= self.newest.version

    def agree(self, oldest: int, newest: int) -> Codec | None:
        """The newest version that the other side speaks as well; None: there is none."""
        common = min(newest, self.newest.version)
        return self._by_number.get(common) if common >= oldest else None


def announced(hello: HelloNode | HelloWorker | HelloAdmin, body: bytes) -> tuple[int, int]:
    """The oldest and the newest version that a client speaks.

    Args:
        hello: of the client.
        body: of its frame, as it was sent.
    """
    oldest = codec.version_of(body)
    return oldest, max(oldest, hello.protocol_max)


def versions(oldest: int, newest: int) -> str:
    """For texts: `version 1`, `versions 1 to 2`."""
    return f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"


SPOKEN = Spoken((codec.CURRENT,))
"""By this process, as server and as client."""
