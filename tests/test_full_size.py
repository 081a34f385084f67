"""The slow proof: MinerU2.5's exact architecture with random weights, exported and run through the Lambda handler."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("dashscope")

from export.fidelity import drawn_image
from handler.artifact import Artifact
from tests.conftest import ROOT

pytestmark = pytest.mark.full

# Imports the handler as Lambda does, sends one direct invocation, prints the answer and the process's peak memory.
INVOKE = """
import json, resource, sys
from handler.app import handler
class Context:
    aws_request_id = "full-size"
    def get_remaining_time_in_millis(self): return 600_000
answer = handler(json.load(open(sys.argv[1])), Context())
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(json.dumps({"answer": answer, "peak_mb": peak_mb}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("full") / "checkpoint"
    command = [sys.executable, "-m", "export", "synth", str(path), "--preset", "mineru2.5", "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=300)
    assert "1,156,026,624 parameters in 681 tensors" in result.stdout
    return path


@pytest.mark.parametrize("dtype", ["int8"])
def test_a_page_goes_through_the_handler(checkpoint: Path, tmp_path: Path, dtype: str) -> None:
    artifact = tmp_path / dtype
    command = [sys.executable, "-m", "export", str(checkpoint), str(artifact), "--dtype", dtype]
    exported = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=900)
    assert exported.returncode == 0, exported.stderr[-2000:]
    fidelity = Artifact.open(artifact).manifest.fidelity
    assert fidelity["vision_encoder"]["mean_abs"] < 0.1 * fidelity["vision_encoder"]["mean_abs_value"]

    page = io.BytesIO()
    drawn_image(672, 952).save(page, "PNG")
    event = tmp_path / "event.json"
    event.write_text(
        json.dumps({"image": base64.b64encode(page.getvalue()).decode(), "max_new_tokens": 64}), encoding="utf-8"
    )
    environment = {**os.environ, "MINERU_ARTIFACT": str(artifact), "PYTHONPATH": str(ROOT)}
    invoked = subprocess.run(
        [sys.executable, "-c", INVOKE, str(event)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
        timeout=900,
    )
    assert invoked.returncode == 0, invoked.stderr[-2000:]
    outcome = json.loads(invoked.stdout.splitlines()[-1])
    assert outcome["answer"]["statusCode"] == 200
    assert outcome["peak_mb"] < 4096
