"""The command line: formats, targets, standard input, progress, exit codes; in this process and in a fresh one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from handler import cli
from handler.config import Settings
from handler.errors import DamagedDocument, EncryptedDocument, EngineError
from handler.pipeline import Options, Progress, Task
from handler.progress import ProgressLine
from tests.edge_fakes import CONTENT_LIST, RESULT_JSON, FakeEngine, FakeParse

ROOT = Path(__file__).resolve().parents[1]
# A fresh interpreter with the fake model: what `python -m handler` does, without weights.
DRIVER = """
import sys
import handler.runtime as runtime
from handler import cli
from handler.config import Settings
from tests.edge_fakes import FakeEngine, FakeParse
runtime.Artifact.open = lambda path: None
runtime.load = lambda *_: FakeEngine()
fake = runtime.parse_document = FakeParse()
{extra}
sys.exit(cli.main())
"""


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> FakeParse:
    fake = FakeParse()
    monkeypatch.setattr("handler.runtime.parse_document", fake)
    monkeypatch.setattr("handler.runtime.Artifact.open", lambda path: None)
    monkeypatch.setattr("handler.runtime.load", lambda *_: FakeEngine())
    monkeypatch.delenv("MINERU_DEBUG", raising=False)
    return fake


@pytest.fixture
def page(tmp_path: Path) -> str:
    path = tmp_path / "page.png"
    path.write_bytes(b"the bytes")
    return str(path)


def fresh(*args: str, extra: str = "", stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run the driver, with some more lines of its own, in a folder that is not ours."""
    return subprocess.run(
        [sys.executable, "-c", DRIVER.format(extra=extra), *args],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        input=stdin,
        capture_output=True,
        timeout=120,
    )


def module(*args: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m handler` as it is."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", "handler", *args], cwd=cwd, env=env, capture_output=True, timeout=120)


# Output.


def test_markdown_is_the_default(parse: FakeParse, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([page]) == 0
    out, err = capsys.readouterr()
    assert out == "Größe 漢字\n"
    assert err == "loading the model\npage 1: block 0/1\n"
    assert parse.calls[0]["data"] == b"the bytes"


@pytest.mark.parametrize(("format", "expected"), [("json", RESULT_JSON), ("content-list", CONTENT_LIST)])
def test_json_formats(
    parse: FakeParse, page: str, format: str, expected: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([page, "--format", format]) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == expected
    assert "漢字" in out


def test_options_reach_the_parser(parse: FakeParse, page: str) -> None:
    options = ["--task", "ask", "--instruction", "Total?", "--pages", "1-3,7", "--dpi", "150", "--image-analysis"]
    assert cli.main([page, *options, "--max-image-px", "800", "--max-new-tokens", "32"]) == 0
    (call,) = parse.calls
    assert call["options"] == Options("ask", "Total?", 800, 32, True)
    assert (call["pages"], call["dpi"], call["deadline_s"]) == ("1-3,7", 150, None)


def test_settings_reach_the_engine(parse: FakeParse, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def load(artifact: Any, settings: Settings) -> FakeEngine:
        seen.append(settings)
        return FakeEngine()

    monkeypatch.setattr("handler.runtime.load", load)
    monkeypatch.setenv("MINERU_THREADS", "1")
    assert cli.main([page, "--artifact", "/models/x", "--threads", "2"]) == 0
    assert cli.main([page]) == 0
    assert [(settings.artifact, settings.threads) for settings in seen] == [
        (Path("/models/x"), 2),
        (Settings().artifact, 1),
    ]


def test_help_names_the_tasks() -> None:
    text = cli._parser().format_help()
    assert all(task in text for task in get_args(Task))


def test_output_file_and_folder(parse: FakeParse, page: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.txt"
    assert cli.main([page, "--output", str(target)]) == 0
    assert target.read_text(encoding="utf-8") == "Größe 漢字\n"
    assert cli.main([page, "--output", str(tmp_path / "folder") + os.sep, "--format", "json"]) == 0
    assert json.loads((tmp_path / "folder" / "page.json").read_text(encoding="utf-8")) == RESULT_JSON


def test_several_files_go_to_a_folder(parse: FakeParse, page: str, tmp_path: Path) -> None:
    (tmp_path / "other.pdf").write_bytes(b"x")
    assert cli.main([page, str(tmp_path / "other.pdf"), "--output", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["other.md", "page.md"]


def test_several_files_to_standard_output(parse: FakeParse, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([page, page, "--quiet"]) == 0
    assert capsys.readouterr() == ("Größe 漢字\nGröße 漢字\n", "")


def test_outputs_that_would_be_lost(parse: FakeParse, page: str, tmp_path: Path) -> None:
    """Two files of the same name, or the input itself, must not be overwritten."""
    (tmp_path / "sub").mkdir()
    twin = tmp_path / "sub" / "page.pdf"
    twin.write_bytes(b"x")
    assert cli.main([page, str(twin), "--output", str(tmp_path / "out")]) == 2
    assert cli.main([page, "--output", page]) == 2
    assert Path(page).read_bytes() == b"the bytes"
    assert cli.main([page, "--output", page + "/below/out.md"]) == 2
    assert parse.calls == []


def test_standard_input(parse: FakeParse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"piped \xff")))
    assert cli.main(["-", "--output", str(tmp_path)]) == 0
    assert parse.calls[0]["data"] == b"piped \xff"
    assert (tmp_path / "stdin.md").exists()


# Exit codes and errors.


@pytest.mark.parametrize(
    ("error", "code", "err"),
    [
        (
            DamagedDocument("It is cut."),
            2,
            f"error [document_damaged]: It is cut.\nhint: {DamagedDocument.default_hint}",
        ),
        (EngineError("It failed."), 1, f"error [engine_failed]: It failed.\nhint: {EngineError.default_hint}"),
        (
            RuntimeError("/var/secret"),
            1,
            "error [internal_error]: Something went wrong in the program (RuntimeError).\n"
            "hint: Run it again with --debug, and report what it shows.",
        ),
    ],
)
def test_errors(
    parse: FakeParse, page: str, error: Exception, code: int, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parse.error = error
    assert cli.main([page, "--quiet"]) == code
    assert capsys.readouterr() == ("", err + "\n")


def test_debug_shows_the_traceback(
    parse: FakeParse, page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parse.error = RuntimeError("why")
    assert cli.main([page, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("MINERU_DEBUG", "1")
    assert cli.main([page]) == 1
    assert "RuntimeError: why" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "detail"),
    [
        ([], "No file is named."),
        (["PAGE", "--task", "tabel"], "The option task takes page | text | table | formula | layout | ask."),
        (["PAGE", "--task", "ask"], "The task ask and the option instruction go together: give both or neither."),
        (["PAGE", "--dpi", "0"], "The option dpi takes a whole number from 1."),
        (["PAGE", "--threads=-1"], "--threads takes a whole number from 0."),
        (["/no/such/file.pdf"], "/no/such/file.pdf can't be read: No such file or directory."),
        (["/"], "/ can't be read: Is a directory."),
    ],
)
def test_wrong_usage(
    parse: FakeParse, page: str, args: list[str], detail: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [page if arg == "PAGE" else arg for arg in args]
    assert cli.main([*args, "--quiet"]) == 2
    assert f"error [request_invalid]: {detail}\nhint: " in capsys.readouterr().err
    assert parse.calls == []


def test_empty_and_large_files(
    parse: FakeParse, page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty.png"
    empty.write_bytes(b"")
    assert cli.main([str(empty)]) == 2
    assert "[document_empty]" in capsys.readouterr().err
    monkeypatch.setenv("MINERU_MAX_DOCUMENT_BYTES", "8")
    assert cli.main([page]) == 2
    assert "[document_too_large]" in capsys.readouterr().err


def test_bad_setting_and_missing_artifact(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main([page, "--artifact", str(tmp_path)]) == 1
    assert "error [artifact_invalid]: There is no readable manifest.json" in capsys.readouterr().err
    assert cli.main(["--verify", "--artifact", str(tmp_path)]) == 1
    monkeypatch.setenv("MINERU_PAGE_DPI", "high")
    assert cli.main([page]) == 1
    assert "error [config_invalid]: MINERU_PAGE_DPI" in capsys.readouterr().err


def test_incomplete_result(parse: FakeParse, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    parse.complete, parse.warnings = False, ["deadline: cut (page 1)"]
    assert cli.main([page]) == 3
    out, err = capsys.readouterr()
    assert out == "Größe 漢字\n"
    assert err.endswith("warning: deadline: cut (page 1)\n")
    assert cli.main([page, "--quiet"]) == 3
    assert capsys.readouterr().err == ""


def test_worst_exit_code_wins_and_the_rest_is_done(
    parse: FakeParse, page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main([page, "/missing.pdf", page, "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == "Größe 漢字\n" * 2
    assert err.startswith("/missing.pdf: error [request_invalid]: ")
    errors = iter([EncryptedDocument("x"), EngineError("y"), None])
    fake = FakeParse()

    def steered(*positional: Any, **named: Any) -> Any:
        fake.error = next(errors)
        return fake(*positional, **named)

    monkeypatch.setattr("handler.runtime.parse_document", steered)
    assert cli.main([page, page, page]) == 1


def test_interrupt(parse: FakeParse, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    parse.error = KeyboardInterrupt()
    assert cli.main([page, "--quiet"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


# Progress.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line() -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    for done in range(3):
        line.show(Progress("block", done, 2))
    line.clear()
    assert stream.getvalue() == "".join(f"\r\x1b[Kpage 1: block {done}/2" for done in range(3)) + "\r\x1b[K"


def test_progress_elsewhere_is_a_line_a_stage() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.label = "a.pdf"
    for page in range(2):
        line.show(Progress("layout", 0, 1, page))
        for done in range(100):
            line.show(Progress("block", done, 100, page))
    assert stream.getvalue().splitlines() == [
        "a.pdf: page 1: layout 0/1",
        "a.pdf: page 1: block 0/100",
        "a.pdf: page 2: layout 0/1",
        "a.pdf: page 2: block 0/100",
    ]


def test_quiet_is_silent_on_a_terminal() -> None:
    stream = Terminal()
    line = ProgressLine(stream, quiet=True)
    line.show(Progress("block", 0, 1))
    line.clear()
    assert stream.getvalue() == ""


# A fresh interpreter.


def test_module_help_and_version(tmp_path: Path) -> None:
    done = module("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"exit codes: 0 done" in done.stdout
    assert module("--version", cwd=tmp_path).stdout == b"mineru-lambda 0.1.0\n"
    assert module("--no-such-option", cwd=tmp_path).returncode == 2


def test_module_without_artifact_has_no_traceback(tmp_path: Path) -> None:
    done = module("page.png", "--artifact", "nowhere", cwd=tmp_path)
    assert done.returncode == 1
    assert b"error [artifact_invalid]" in done.stderr
    assert b"Traceback" not in done.stderr


def test_output_is_utf8_whatever_the_locale() -> None:
    done = fresh("-", "--quiet", stdin=b"x", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "Größe 漢字\n", b"")


def test_broken_pipe_is_quiet() -> None:
    """A reader like head(1) that goes away is no error to shout about."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER.format(extra=""), "-", "--quiet"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=b"x",
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=120,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c() -> None:
    extra = "import os, signal\nruntime.load = lambda *_: os.kill(os.getpid(), signal.SIGINT)"
    done = fresh("-", "--quiet", stdin=b"x", extra=extra)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")
