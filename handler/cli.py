"""The command line: files in, Markdown or JSON out, progress and complaints on standard error.

Imports nothing heavy before the arguments are known, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from handler import __version__
from handler.config import Settings
from handler.errors import InputError, MineruError, RequestError

if TYPE_CHECKING:
    from handler.progress import ProgressLine
    from handler.request import ParseRequest
    from handler.runtime import Runtime

OK, FAILED, WRONG_INPUT, INCOMPLETE, BROKEN_PIPE, INTERRUPTED = 0, 1, 2, 3, 141, 130
WORST_FIRST = (FAILED, WRONG_INPUT, INCOMPLETE, OK)
SUFFIXES = {"md": ".md", "json": ".json", "content-list": ".json", "layout": ".png"}
EXIT_CODES = """\
exit codes: 0 done; 1 the model or the program failed; 2 wrong input or usage; 3 done in part (see the warnings);
130 interrupted; 141 nobody reads the output. Of several files the worst counts, in the order 1, 2, 3."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except MineruError as exc:
        return _complain(exc, args.debug)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # What is still in the buffer would raise again when Python flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as exc:
        return _complain(exc, args.debug)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m handler",
        description="Read documents (PDF or images) into Markdown, blocks or answers.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="a PDF or an image; - reads standard input")
    add("--task", help="page (default), text, table, formula, layout, or ask")
    add("--instruction", metavar="TEXT", help="the question of --task ask")
    add("--pages", help="which pages, like 1-3,7; default all")
    add(
        "--format",
        choices=SUFFIXES,
        default="md",
        help="format of the output; default md; layout is a PNG of the pages with their boxes",
    )
    add("--output", metavar="PATH", default="-", help="a file, or a folder for several; - is standard output")
    add("--artifact", metavar="DIR", help="folder of the exported model; default MINERU_ARTIFACT or the bundled one")
    add("--dpi", metavar="N", help="resolution PDF pages are rendered at")
    add("--max-image-px", metavar="N", help="longest side of the image of a single-step task")
    add("--max-new-tokens", metavar="N", help="most tokens of one answer of the model")
    add("--image-analysis", action="store_true", help="describe pictures too, where the model can")
    add("--threads", metavar="N", help="threads of the model; 0 is all that may be used")
    add("--quiet", action="store_true", help="no progress and no warnings; errors only")
    add("--verify", action="store_true", help="check the hashes of the model first; without FILE do only that")
    add("--debug", action="store_true", default=bool(os.environ.get("MINERU_DEBUG")), help="show tracebacks")
    add("--version", action="version", version=f"mineru-lambda {__version__}")
    return parser


def _run(args: argparse.Namespace) -> int:
    if not args.files and not args.verify:
        raise RequestError("No file is named.", hint="Name a PDF or an image, or - for standard input; see --help.")
    settings = _settings(args)
    from handler.progress import ProgressLine

    line = ProgressLine(sys.stderr, quiet=args.quiet)
    try:
        if args.verify:
            _verify(settings, line, quiet=args.quiet)
        return _parse_all(args, settings, line) if args.files else OK
    finally:
        line.clear()


def _verify(settings: Settings, line: ProgressLine, *, quiet: bool) -> None:
    from handler.artifact import Artifact

    line.say("checking the model's files")
    Artifact.open(settings.artifact).verify()
    line.clear()
    if not quiet:
        print("The model's files are those that were exported.", file=sys.stderr)


def _parse_all(args: argparse.Namespace, settings: Settings, line: ProgressLine) -> int:
    from handler.runtime import Runtime

    targets = _targets(args)
    if args.format == "layout" and None in targets and (len(targets) > 1 or sys.stdout.isatty()):
        raise RequestError("A picture can't be printed here.", hint="Name a file or a folder with --output.")
    _request(args, b"-")  # a wrong option is told before the model is loaded and the first file is read
    runtime = Runtime(settings)
    line.say("loading the model")
    runtime.load()
    codes = [_one(args, name, target, runtime, line) for name, target in zip(args.files, targets, strict=True)]
    return next(code for code in WORST_FIRST if code in codes)


def _one(args: argparse.Namespace, name: str, target: Path | None, runtime: Runtime, line: ProgressLine) -> int:
    """Parse one file; what is wrong with it is told and does not stop the next one."""
    from handler.answer import render

    label = name if len(args.files) > 1 else ""
    try:
        line.label = label
        document = _read(name, runtime.settings.max_document_bytes)
        asked = _request(args, document)
        result = runtime.run(asked, progress=line.show)
        line.clear()
        _write(render(result, args.format, asked, runtime.settings, indent=1)[1], target)
    except BrokenPipeError:
        raise
    except Exception as exc:
        line.clear()
        return _complain(exc, args.debug, label)
    if not args.quiet:
        for warning in result.warnings:
            print(f"{label}: warning: {warning}" if label else f"warning: {warning}", file=sys.stderr)
    return OK if result.complete else INCOMPLETE


def _settings(args: argparse.Namespace) -> Settings:
    settings = Settings.from_env()
    if args.artifact:
        settings = replace(settings, artifact=Path(args.artifact))
    if args.threads is not None:
        if not args.threads.isdecimal():
            raise RequestError("--threads takes a whole number from 0.")
        settings = replace(settings, threads=int(args.threads))
    return settings


def _request(args: argparse.Namespace, document: bytes) -> ParseRequest:
    from handler.request import build

    names = ("task", "instruction", "pages", "max_image_px", "max_new_tokens", "dpi", "image_analysis")
    return build(document, {name: getattr(args, name) for name in names if getattr(args, name) is not False})


def _targets(args: argparse.Namespace) -> list[Path | None]:
    """Where each file's output goes, None for standard output; made ready now rather than after minutes of work."""
    if args.output == "-":
        return [None] * len(args.files)
    path = Path(args.output)
    try:
        if len(args.files) == 1 and not path.is_dir() and not args.output.endswith(os.sep):
            path.parent.mkdir(parents=True, exist_ok=True)
            targets = [path]
        else:
            path.mkdir(parents=True, exist_ok=True)
            stems = ["stdin" if name == "-" else Path(name).stem for name in args.files]
            targets = [path / (stem + SUFFIXES[args.format]) for stem in stems]
    except OSError as exc:
        raise RequestError(f"--output {args.output} can't be used: {exc.strerror}.") from exc
    if len(set(targets)) < len(targets):
        raise RequestError("Two of the files would be written to the same output.", hint="Parse them one by one.")
    if {target.resolve() for target in targets} & {Path(name).resolve() for name in args.files}:
        raise RequestError("The output would overwrite one of the files.", hint="Name another --output.")
    return list(targets)


def _read(name: str, max_bytes: int) -> bytes:
    from handler.request import too_large

    try:
        if name == "-":
            document = sys.stdin.buffer.read(max_bytes + 1)
        else:
            with open(name, "rb") as file:
                document = file.read(max_bytes + 1)
    except OSError as exc:
        raise RequestError(f"{name} can't be read: {exc.strerror}.", hint="Name a file that can be read.") from exc
    if len(document) > max_bytes:
        raise too_large(max_bytes)
    return document


def _write(rendered: str | bytes, target: Path | None) -> None:
    data = rendered if isinstance(rendered, bytes) else (rendered.rstrip("\n") + "\n").encode()
    if target is None:
        # Bytes: the locale's encoding may not know the document's script.
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        target.write_bytes(data)
    except OSError as exc:
        raise RequestError(f"{target} can't be written: {exc.strerror}.") from exc


def _complain(exc: Exception, debug: bool, label: str = "") -> int:
    """Tell an error on standard error; returns its exit code."""
    if debug:
        traceback.print_exception(exc)
    if not isinstance(exc, MineruError):
        hint = "Run it again with --debug, and report what it shows."
        exc = MineruError(f"Something went wrong in the program ({type(exc).__name__}).", hint=hint)
    prefix = f"{label}: " if label else ""
    print(f"{prefix}error [{exc.code}]: {exc.detail}\nhint: {exc.hint}", file=sys.stderr)
    return WRONG_INPUT if isinstance(exc, InputError) else FAILED
