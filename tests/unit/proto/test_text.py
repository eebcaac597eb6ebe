import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_proto.text import visible


@pytest.mark.parametrize("text", ["node-7", "Größe µ 漢字", "a b", 'say "hi"', "back\\slash", ""])
def test_what_prints_as_itself_is_left_alone(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nlevel=info", "a\\nlevel=info"),
        ("\x1b[2J", "\\x1b[2J"),
        ("abc\u202efdp", "abc\\u202efdp"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("line\u2028break", "line\\u2028break"),
        ("\udc80", "\\udc80"),
        ("\\n\n", "\\\\n\\n"),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(alphabet=st.characters()))
def test_whatever_comes_out_prints_on_one_line(text: str) -> None:
    assert visible(text).isprintable()


@given(st.text(), st.integers(0, 50))
def test_a_long_text_is_cut_and_says_so(text: str, chars_max: int) -> None:
    shown = visible(text, chars_max)
    assert len(shown) <= chars_max + 1
    assert shown.endswith("…") or shown == visible(text)
