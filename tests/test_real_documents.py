"""Every real file of ../shared/documents through the command line with the bundled model: read, or the right error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from handler import cli
from tests.conftest import ROOT, SHARED

DOCUMENTS = SHARED / "documents"
ERRORS = {
    "bomb_1bit_12000x12000.png": "document_too_large",
    "bomb_1bit_20000x20000.png": "document_too_large",
    "bomb_200Mpx.heic": "document_too_large",
    "bomb_65535x66601.gif": "document_too_large",
    "broken.png": "document_damaged",
    "corrupted.heic": "document_damaged",
    "empty.heic": "document_empty",
    "empty.pdf": "document_empty",
    "encrypted_user_password.pdf": "document_encrypted",
    "text_named.png": "document_unsupported",
    "truncated.png": "document_damaged",
    "truncated_half.pdf": "document_damaged",
    "zero_width.gif": "document_damaged",
}
N_PAGES = {
    "fax_g3_3frames.tif": 3,
    "formula_code_2p.pdf": 2,
    "g4_3frames_3307x4677.tiff": 3,
    "multipage_5p.pdf": 5,
    "paper_twocol_dpr_2p.pdf": 2,
}
FILES = sorted(path for path in DOCUMENTS.glob("**/*") if path.suffix and path.suffix not in {".json", ".txt"})

pytestmark = pytest.mark.skipif(not FILES, reason="needs ../shared, which a plain clone does not have")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_read_or_the_right_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.suffix == ".heic":
        pytest.importorskip("pillow_heif")
    status = cli.main([str(path), "--format", "json", "--max-new-tokens", "16"])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    code = ERRORS.get(path.name)
    if code:
        assert (status, captured.out) == (2, "")
        assert f"error [{code}]: " in captured.err
        assert "hint: " in captured.err
        return
    assert status == 0, captured.err
    result = json.loads(captured.out)
    assert [page["page"] for page in result["pages"]] == list(range(1, N_PAGES.get(path.name, 1) + 1))
    assert result["complete"] is True


def test_the_table_names_files_that_are_there() -> None:
    assert {*ERRORS, *N_PAGES} <= {path.name for path in FILES}


@pytest.mark.parametrize("name", ["paper_table_1p.pdf", "edge/truncated.png"])
def test_the_same_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "handler", str(DOCUMENTS / name), "--max-new-tokens", "16", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environment, check=False, timeout=120)
    assert result.returncode == (2 if "edge" in name else 0), result.stderr
    assert b"Traceback" not in result.stderr
