"""Every error this package raises on purpose, as one tree.

Knows nothing about HTTP frameworks, models or files.

    MineruError                  internal_error        500
    ├── ConfigError              config_invalid        500
    ├── ArtifactError            artifact_invalid      503
    ├── EngineError              engine_failed         500
    ├── BusyError                busy                  429
    └── InputError               input_invalid         400
        ├── RequestError         request_invalid       400
        ├── EmptyDocument        document_empty        422
        ├── UnsupportedDocument  document_unsupported  415
        ├── DamagedDocument      document_damaged      422
        ├── EncryptedDocument    document_encrypted    422
        ├── DocumentTooLarge     document_too_large    413
        └── PageOutOfRange       page_out_of_range     422

`detail` is safe to show to whoever sent the request: it never holds a path, a value of the environment or text of
the document. `hint` says what to do. Everything else goes to the log.
"""

from __future__ import annotations

from typing import ClassVar


class MineruError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    detail : str
        What is wrong, safe to show.
    hint : str
        What the caller can do about it; the class has a default.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    default_hint: ClassVar[str] = "Try again; if it happens again, report the request id."

    def __init__(self, detail: str, *, hint: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = self.default_hint if hint is None else hint


class ConfigError(MineruError):
    """A setting has a value that is not allowed; raised at start only."""

    code = "config_invalid"
    default_hint = "Correct the named environment variable and start again."


class ArtifactError(MineruError):
    """The exported model is missing, cut, changed, too new or written for something else."""

    code = "artifact_invalid"
    status = 503
    default_hint = "Export the model again with `python -m export`, or set MINERU_ARTIFACT to a whole artifact."


class EngineError(MineruError):
    """The model could not be run on this input."""

    code = "engine_failed"


class BusyError(MineruError):
    """Another request is being worked on: this process takes one at a time."""

    code = "busy"
    status = 429
    default_hint = "Send it again after the time that Retry-After names."


class InputError(MineruError):
    """Base of everything that is wrong with what was sent."""

    code = "input_invalid"
    status = 400
    default_hint = "Correct the request and send it again."


class RequestError(InputError):
    """The request itself is wrong: an option, a field, an encoding."""

    code = "request_invalid"


class EmptyDocument(InputError):
    """Zero bytes, or a document without pages."""

    code = "document_empty"
    status = 422
    default_hint = "Send a file with at least one page."


class UnsupportedDocument(InputError):
    """Not a format that is read here."""

    code = "document_unsupported"
    status = 415
    default_hint = "Send PDF, PNG, JPEG, WebP, TIFF, GIF or BMP (HEIC when pillow-heif is installed)."


class DamagedDocument(InputError):
    """The format is known but the bytes can't be decoded."""

    code = "document_damaged"
    status = 422
    default_hint = "Open the file in a viewer; if it shows, save it anew and send that."


class EncryptedDocument(InputError):
    """The PDF opens only with a password."""

    code = "document_encrypted"
    status = 422
    default_hint = "Remove the password and send the file again."


class DocumentTooLarge(InputError):
    """More bytes, pixels or pages than are allowed; found before anything is decoded."""

    code = "document_too_large"
    status = 413
    default_hint = "Send a smaller image, fewer pages, or raise the limit that the message names."


class PageOutOfRange(InputError):
    """A page was asked for that the document does not have."""

    code = "page_out_of_range"
    status = 422
    default_hint = "Pages count from 1."
