"""What one owner may hold: so many keys, so many bytes. All its key spaces share one quota."""


class Quota:
    """Counts the keys and bytes of several key spaces against one limit.

    Args:
        bytes_max: of keys and values together.
        keys_max: keys, queued values included.
    """

    __slots__ = ("bytes_max", "bytes_used", "keys_max", "keys_used")

    def __init__(self, bytes_max: int, keys_max: int) -> None:
        self.bytes_max, self.keys_max = bytes_max, keys_max
        self.bytes_used = self.keys_used = 0

    def allows(self, grown_bytes: int, new_keys: int) -> bool:
        """Whether a change fits. One that grows in neither always does."""
        return (grown_bytes <= 0 or self.bytes_used + grown_bytes <= self.bytes_max) and (
            new_keys <= 0 or self.keys_used + new_keys <= self.keys_max
        )

    def take(self, grown_bytes: int, new_keys: int) -> None:
        """Count a change that was made; negative numbers give back."""
        self.bytes_used += grown_bytes
        self.keys_used += new_keys
        assert self.bytes_used >= 0, "more bytes given back than taken"
        assert self.keys_used >= 0, "more keys given back than taken"
