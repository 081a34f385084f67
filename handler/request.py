"""What one request asks for: the document's bytes and its options, read from plain fields.

Every front door (HTTP, direct invoke, command line) hands its fields to this file, so that an option has one meaning
and one error text everywhere. Knows nothing about HTTP, Lambda events or models.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from handler.config import variable
from handler.errors import DocumentTooLarge, EmptyDocument, RequestError
from handler.pipeline import Options, Task

Format = Literal["json", "md", "content-list", "layout"]
MAX_INSTRUCTION_CHARS = 4000
REPLACEMENT = "\ufffd".encode()
# What the first bytes of a PNG and a JPEG become when they are decoded as UTF-8, and the signatures that survive it.
MANGLED_HEADS = (REPLACEMENT + b"PNG", REPLACEMENT * 3)
TEXT_HEADS = (b"%PDF-", b"RIFF", b"II*\0", b"MM\0*", b"GIF8", b"BM")


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """One document and how to read it. `format` is None when the front door may choose."""

    document: bytes
    options: Options
    pages: str | None = None
    dpi: int | None = None
    format: Format | None = None


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """How an option is read (`read` raises ValueError), and what is said about it to people and in OpenAPI."""

    read: Callable[[object], Any]
    allowed: str
    what: str
    schema: dict[str, Any]


def _choice(allowed: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in allowed:
            raise ValueError
        return str(value)

    return read


def _count(value: object) -> int:
    # Not int(): that takes "1_0", " 1 ", True and 1.9 as well.
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ValueError
    return int(text)


def _flag(value: object) -> bool:
    word = str(value).lower()
    if word not in ("true", "false"):
        raise ValueError
    return word == "true"


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_INSTRUCTION_CHARS:
        raise ValueError
    return value


def _pages(value: object) -> str:
    # The ranges themselves are read where the number of pages is known.
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return str(value)


_COUNT = {"type": "integer", "minimum": 1}
_WHOLE = "a whole number from 1"

OPTIONS: dict[str, OptionSpec] = {
    "task": OptionSpec(
        _choice(get_args(Task)),
        " | ".join(get_args(Task)),
        "what to read: the whole page (default), one kind of content, the layout alone, or an answer",
        {"type": "string", "enum": list(get_args(Task)), "default": "page"},
    ),
    "instruction": OptionSpec(
        _text,
        f"text of 1 to {MAX_INSTRUCTION_CHARS:,} characters",
        "the question of task `ask`",
        {"type": "string", "minLength": 1, "maxLength": MAX_INSTRUCTION_CHARS},
    ),
    "pages": OptionSpec(
        _pages, 'pages and ranges, like "1-3,7"', "which pages, counted from 1; default all", {"type": "string"}
    ),
    "max_image_px": OptionSpec(_count, _WHOLE, "longest side of the image of a single-step task, pixels", _COUNT),
    "max_new_tokens": OptionSpec(_count, _WHOLE, "most tokens of one answer of the model", _COUNT),
    "dpi": OptionSpec(_count, _WHOLE, "resolution PDF pages are rendered at", _COUNT),
    "image_analysis": OptionSpec(
        _flag, "true | false", "describe pictures too, where the model can", {"type": "boolean", "default": False}
    ),
    "format": OptionSpec(
        _choice(get_args(Format)),
        " | ".join(get_args(Format)),
        "format of the result; over HTTP it goes before the Accept header",
        {"type": "string", "enum": list(get_args(Format))},
    ),
}
_MODEL_OPTIONS = ("task", "instruction", "max_image_px", "max_new_tokens", "image_analysis")


def build(document: bytes, values: Mapping[str, object]) -> ParseRequest:
    """Read the options and look at the document's first bytes.

    Parameters
    ----------
    document : bytes
    values : mapping of option name to text or JSON value
        None and empty text count as not given: that is what an empty form field sends.

    Raises
    ------
    RequestError
        An option is unknown or its value not allowed, or the bytes were changed on their way here.
    EmptyDocument
    """
    read = {name: _read(name, value) for name, value in values.items() if value is not None and value != ""}
    options = Options(**{name: read[name] for name in _MODEL_OPTIONS if name in read})
    if (options.task == "ask") != (options.instruction is not None):
        raise RequestError("The task ask and the option instruction go together: give both or neither.")
    if not document:
        raise EmptyDocument("The document has no bytes.")
    if is_mangled(document):
        raise RequestError(
            "The document was decoded as text on its way here and can't be read any more.",
            hint="The API's binary media types are not set: add multipart/form-data, image/*, application/pdf and "
            "application/octet-stream to them, or send JSON with the document in base64.",
        )
    return ParseRequest(document, options, read.get("pages"), read.get("dpi"), read.get("format"))


def from_json(fields: Mapping[str, object], max_document_bytes: int) -> ParseRequest:
    """Read a JSON object: the document in base64 as `image`, everything else an option.

    Raises
    ------
    RequestError, EmptyDocument, DocumentTooLarge
    """
    values = dict(fields)
    if "s3_uri" in values:
        raise RequestError(
            "Reading from S3 (s3_uri) is not supported yet.", hint="Send the document itself, in base64, as image."
        )
    if "image" not in values:
        raise RequestError("The field image is missing.", hint="Send the document (image or PDF) in base64 as image.")
    return build(decode_base64(values.pop("image"), max_document_bytes), values)


def decode_base64(value: object, max_document_bytes: int) -> bytes:
    """Bytes of base64 text or of a base64 data URL. Nothing is fetched: a path or another URL is refused.

    Raises
    ------
    RequestError, DocumentTooLarge
    """
    wrong = RequestError(
        "The field image is not base64.",
        hint="Send the bytes of the file in base64, bare or as a data URL; paths and web addresses are not fetched.",
    )
    if not isinstance(value, str):
        raise wrong
    head, comma, text = value.partition(",") if value.startswith("data:") else ("", "", value)
    if comma and not head.lower().endswith(";base64"):
        raise wrong
    text = "".join(text.split())  # base64(1) breaks its lines
    if len(text) // 4 * 3 - 2 > max_document_bytes:  # before decoding; padding makes it exact only after
        raise too_large(max_document_bytes)
    try:
        document = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise wrong from exc
    if len(document) > max_document_bytes:
        raise too_large(max_document_bytes)
    return document


def too_large(max_document_bytes: int) -> DocumentTooLarge:
    """The error for a document over the limit, the same wherever it is noticed."""
    limit = variable("max_document_bytes")
    return DocumentTooLarge(f"The document is larger than {max_document_bytes:,} bytes; {limit} sets this limit.")


def is_mangled(document: bytes) -> bool:
    """Whether a gateway has decoded the file as UTF-8 and put U+FFFD for what it could not read.

    Such a body is valid UTF-8 with many U+FFFD, which no binary file is. A genuine PDF can be pure text, hence the
    count where the signature itself survives.

    Source: Kludex/mangum #207, fastapi #1389.
    """
    if document.startswith(MANGLED_HEADS):
        return True
    head = document[:65_536]
    if not head.startswith(TEXT_HEADS) or head.count(REPLACEMENT) < 8:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _read(name: str, value: object) -> Any:
    spec = OPTIONS.get(name)
    if spec is None:
        raise RequestError(f"There is no option {name[:40]!r}.", hint=f"Options are {', '.join(OPTIONS)}.")
    try:
        return spec.read(value)
    except ValueError as exc:
        raise RequestError(f"The option {name} takes {spec.allowed}.") from exc
