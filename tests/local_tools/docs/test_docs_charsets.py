"""Bytes to text, as browsers read the labels of encodings."""

from __future__ import annotations

import pytest
from bundle_router.local_tools.docs.charsets import PRESCAN, decode_page

NONE_IS_NAMED = "none is named, and it is not UTF-8; decoded as windows-1252, which may be wrong"


@pytest.mark.parametrize(
    ("label", "body", "text"),
    [
        ("utf8", b"gr\xc3\xbc", "grü"),
        ("Unicode-1-1-UTF-8", b"gr\xc3\xbc", "grü"),
        ("iso-8859-1", b"\x93q\x94 \x96 5 \x80", "“q” – 5 €"),
        ("latin1", b"caf\xe9 \x80", "café €"),
        ("us-ascii", b"caf\xe9", "café"),
        ("windows-1252", b"\x99", "™"),
        ("iso-8859-2", b"\xb3", "ł"),
        ("iso-8859-5", b"\xbf", "П"),
        ("iso-8859-8-i", b"\xf9\xec\xe5\xed", "שלום"),
        ("iso-8859-15", b"\xa4", "€"),
        ("windows-1251", b"\xef\xf0", "пр"),
        ("windows-1254", b"\xf0", "ğ"),
        ("windows-874", b"\xe4\xb7\xc2", "ไทย"),
        ("tis-620", b"\xe4\xb7\xc2", "ไทย"),
        ("koi8-r", b"\xcd\xc9\xd2", "мир"),
        ("koi8-u", b"\xa4", "є"),
        ("ibm866", b"\xe0\xe3", "ру"),
        ("x-mac-cyrillic", b"\xe0", "а"),
        ("macintosh", b"\x8e", "é"),
        ("gb2312", b"\xe9F", "镕"),
        ("gb2312", b"\x81\x30\x81\x30", "\x80"),
        ("x-gbk", b"\xd6\xd0", "中"),
        ("gb18030", b"\x95\x32\x82\x36", "𠀀"),
        ("big5-hkscs", b"\xa4\xa4\xfa\x40", "中𠕇"),
        ("big5", b"\xa4\xa4", "中"),
        ("shift_jis", b"\x87\x40\xfb\xfc", "①髙"),
        ("x-sjis", b"\x93\xfa", "日"),
        ("windows-31j", b"\x93\xfa", "日"),
        ("euc-jp", b"\xc6\xfc", "日"),
        ("iso-2022-jp", b"\x1b$BF|\x1b(B", "日"),
        ("euc-kr", b"\x8c\x63", "똠"),
        ("ks_c_5601-1987", b"\xc7\xd1", "한"),
        ("utf-16", "grü".encode("utf-16-le"), "grü"),
        ("utf-16be", "grü".encode("utf-16-be"), "grü"),
    ],
)  # fmt: skip
def test_a_label_means_what_the_standard_says(label: str, body: bytes, text: str) -> None:
    decoded = decode_page(body, label)
    assert decoded.text == text.replace("\x80", "")
    assert decoded.problem == ""


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        (b"\xef\xbb\xbfgr\xc3\xbc", "iso-8859-1", "grü"),
        (b"\xff\xfeg\0r\0", "utf-8", "gr"),
        (b"\xfe\xff\0g\0r", "gbk", "gr"),
        (b"<meta charset=gbk>\xc3\xbc", "utf-8", "<meta charset=gbk>ü"),
        (b"<meta charset=gbk>\xd6\xd0", "", "<meta charset=gbk>中"),
        (b"<meta charset=gbk>\xd6\xd0", "no-such-label", "<meta charset=gbk>中"),
        (
            b'<META http-equiv="Content-Type" content="text/html; charset=windows-1251">\xef',
            "",
            '<META http-equiv="Content-Type" content="text/html; charset=windows-1251">п',
        ),
        (b'<?xml version="1.0" encoding="koi8-r"?>\xcd', "", '<?xml version="1.0" encoding="koi8-r"?>м'),
        (b"<!-- <meta charset=gbk> -->\xc3\xbc", "", "<!-- <meta charset=gbk> -->ü"),
        (b"<meta charset=utf-16>gr\xc3\xbc", "", "<meta charset=utf-16>grü"),
        (b" " * PRESCAN + b"<meta charset=gbk>\xc3\xbc", "", " " * PRESCAN + "<meta charset=gbk>ü"),
        (b"gr\xc3\xbc", "", "grü"),
        (b"gr\xc3\xbc", "zlib", "grü"),
        (b"\\u0041", "unicode_escape", "\\u0041"),
    ],
)  # fmt: skip
def test_a_mark_comes_before_the_header_and_the_header_before_the_page(
    body: bytes, charset: str, text: str
) -> None:
    decoded = decode_page(body, charset)
    assert decoded.text == text
    assert decoded.problem == ""


@pytest.mark.parametrize(
    ("body", "charset", "text", "problem"),
    [
        (b"caf\xe9", "", "café", NONE_IS_NAMED),
        (b"caf\xe9", "idna", "café", NONE_IS_NAMED),
        (b"\xff.\xff", "utf-8", "\ufffd.\ufffd", "2 characters could not be decoded as utf-8"),
        (b"\xff.\xff", "euc-jp", "\ufffd.\ufffd", "2 characters could not be decoded as euc-jp"),
        (b"a", "iso-2022-kr", "\ufffd", "1 characters could not be decoded as replacement"),
    ],
)  # fmt: skip
def test_what_could_not_be_decoded_is_said(
    body: bytes, charset: str, text: str, problem: str
) -> None:
    decoded = decode_page(body, charset)
    assert (decoded.text, decoded.problem) == (text, problem)


def test_a_character_that_the_bound_cuts_in_two_is_no_problem() -> None:
    assert decode_page("grü".encode()[:-1], "utf-8", cut=True).problem == ""
    assert decode_page("grü".encode()[:-1], "", cut=True).text == "gr"
    assert decode_page("grü".encode()[:-1], "utf-8").problem != ""
