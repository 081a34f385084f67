"""Reading a request's fields: mangled binaries and base64."""

from __future__ import annotations

import base64

import pytest

from handler.errors import DocumentTooLarge
from handler.request import decode_base64, is_mangled
from tests.http_fakes import PNG


@pytest.mark.parametrize(
    ("document", "mangled"),
    [
        (PNG, False),
        (PNG.decode("utf-8", "replace").encode(), True),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", False),
        (b"\xff\xd8\xff\xe0\0\x10JFIF".decode("utf-8", "replace").encode(), True),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + bytes(range(128, 256)), False),
        ((b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + bytes(range(128, 256)) * 2).decode("utf-8", "replace").encode(), True),
        (b"RIFF\x9a\xff\x9e\0WEBPVP8 " + bytes(range(128, 256)), False),
        ((b"RIFF\x9a\xff\x9e\0WEBPVP8 " + bytes(range(128, 256))).decode("utf-8", "replace").encode(), True),
        ("%PDF-1.4 of pure text with one \ufffd in it".encode(), False),
        (b"%PDF-1.7 " + "\ufffd".encode() * 100 + b"\xe2\xe3\xcf\xd3", False),
        (b"%PDF-1.7 " + "\ufffd".encode() * 30_000, True),  # the look ends within a character
        (("a text of \ufffd" * 9).encode(), False),
    ],
)
def test_is_mangled(document: bytes, mangled: bool) -> None:
    assert is_mangled(document) is mangled


def test_decode_base64_limit_is_exact() -> None:
    for n_bytes in (1, 2, 3, 998, 999, 1000):
        assert len(decode_base64(base64.b64encode(b"x" * n_bytes).decode(), 1000)) == n_bytes
    with pytest.raises(DocumentTooLarge):
        decode_base64(base64.b64encode(b"x" * 1003).decode(), 1000)
