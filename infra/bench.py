"""Seconds and memory of one artifact by phase: start, vision, prefill, decode. A table, then a last line of JSON.

    python infra/bench.py ARTIFACT [--repeat 3] [--shapes 16x40,48x68,74x74] [--tokens 128]

Shapes are grids of 14-px patches: 16x40 is a text crop, 48x68 a page capped at 960 px, 74x74 the layout image. Run it
alone: it says what the machine is, but can't know what else runs there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

PROMPT = "\nText Recognition:"


def memory_mb() -> dict[str, int]:
    """Peak and anonymous resident memory of this process, in MB of 2**20 bytes."""
    fields = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in {"VmHWM", "RssAnon"}:
            fields[{"VmHWM": "peak_rss_mb", "RssAnon": "anonymous_mb"}[name]] = int(value.split()[0]) // 1024
    return fields


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines():
        if line.startswith(("flags", "Features")):
            flags = set(line.split(":")[1].split())
            break
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
    return {
        "nproc": len(os.sched_getaffinity(0)),
        "cpu_flags": [flag for flag in wanted if flag in flags],
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
    }


def measure(artifact_path: Path, shapes: list[tuple[int, int]], repeat: int, n_tokens: int) -> dict[str, Any]:
    """Load once, then run every shape `repeat` times, shapes alternating; medians in milliseconds."""
    started_s = time.perf_counter()
    from PIL import Image

    from handler.artifact import Artifact
    from handler.config import Settings
    from handler.engine import Sampling, load

    imported_s = time.perf_counter()
    artifact = Artifact.open(artifact_path)
    engine = load(artifact, Settings())
    loaded_s = time.perf_counter()
    laps: dict[tuple[int, int], list[dict[str, float]]] = {shape: [] for shape in shapes}
    for _ in range(repeat):
        for shape in shapes:
            image = Image.effect_noise((shape[1] * 14, shape[0] * 14), 80).convert("RGB")
            answer = engine.generate(image, PROMPT, Sampling(max_new_tokens=n_tokens, presence_penalty=0.5))
            lap = dict(answer.timings_ms)
            lap["decode_tokens_per_s"] = len(answer.token_ids) / (lap["decode"] / 1000) if answer.token_ids else 0.0
            lap["n_prompt_tokens"] = answer.n_prompt_tokens
            laps[shape].append(lap)
    return {
        "artifact": {"model": artifact.manifest.model.id, "dtype": artifact.manifest.dtype},
        "import_ms": (imported_s - started_s) * 1000,
        "load_ms": (loaded_s - imported_s) * 1000,
        "shapes": {
            f"{shape[0]}x{shape[1]}": {name: statistics.median(lap[name] for lap in runs) for name in runs[0]}
            for shape, runs in laps.items()
        },
        **memory_mb(),
        "machine": machine(),
    }


def main() -> None:
    """Run the command line; see the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--shapes", default="16x40,48x68,74x74")
    arguments = parser.parse_args()
    shapes = []
    for text in arguments.shapes.split(","):
        rows, _, columns = text.partition("x")
        shapes.append((int(rows), int(columns)))
    result = measure(arguments.artifact, shapes, arguments.repeat, arguments.tokens)
    print(f"import {result['import_ms']:.0f} ms, load {result['load_ms']:.0f} ms")
    print(f"{'patches':>10}{'vision s':>10}{'prompt':>8}{'prefill s':>11}{'tokens/s':>10}")
    for shape, row in result["shapes"].items():
        print(
            f"{shape:>10}{row['vision'] / 1000:>10.2f}{row['n_prompt_tokens']:>8.0f}{row['prefill'] / 1000:>11.2f}"
            f"{row['decode_tokens_per_s']:>10.1f}"
        )
    print(f"peak {result['peak_rss_mb']} MB, anonymous at the end {result['anonymous_mb']} MB")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
