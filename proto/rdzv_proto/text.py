"""Text that somebody else wrote, made safe to show: in a log, on a terminal, in an error.

The message types already refuse control characters in names and texts. This is the second line, at the
place of showing, and it also covers what is not a name: keys, what is left of a foreign protocol, and
the characters that print as nothing or turn the rest of a line around (Unicode's format class).
"""


def visible(text: str, chars_max: int | None = None) -> str:
    r"""The text with everything that does not print as itself escaped as in Python (`\n`, `\u202e`).

    Args:
        text: anything.
        chars_max: longest result before `…`; None: as long as it is.
    """
    if not text.isprintable():
        # The backslash too, or an escape could be forged; a lone surrogate is not printable.
        text = "".join(
            c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode()
            for c in text
        )
    if chars_max is not None and len(text) > chars_max:
        return text[:chars_max] + "…"
    return text
