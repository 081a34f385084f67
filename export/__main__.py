"""`python -m export MODEL OUT` and `python -m export synth OUT`: the command line of the build side."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from pathlib import Path

ONNX_DTYPES = ("int8", "int4", "fp16", "fp32")
TRANSFORMERS_DTYPES = ("bf16", "fp16", "fp32")


def _export_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export",
        description="Turn a MinerU2.5 (qwen2_vl) checkpoint into an artifact that the handler runs.",
        epilog="`python -m export synth --help` makes checkpoints with random weights, `… stress --help` "
        "variants that are hard to quantise: for tests and measurements.",
    )
    parser.add_argument("model", help="model directory, or owner/name on the Hugging Face hub")
    parser.add_argument("output", type=Path, help="folder of the artifact to write")
    parser.add_argument("--backend", choices=("onnx", "transformers"), default="onnx", help="default: onnx")
    parser.add_argument(
        "--dtype",
        choices=sorted({*ONNX_DTYPES, *TRANSFORMERS_DTYPES}),
        help=f"onnx: {', '.join(ONNX_DTYPES)}; transformers: {', '.join(TRANSFORMERS_DTYPES)}; default: the first",
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: the newest)")
    parser.add_argument("--force", action="store_true", help="replace the output folder")
    parser.add_argument("--calibration", type=Path, help="folder of page images to find outliers by (default: drawn)")
    parser.add_argument("--no-check", dest="check", action="store_false", help="skip the comparison with Transformers")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--debug", action="store_true", help="show the exporters' own messages")
    return parser


def _synth_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export synth",
        description="Write a checkpoint with seeded random weights; what it says is noise.",
    )
    parser.add_argument("output", type=Path, help="folder of the checkpoint to write")
    parser.add_argument("--preset", choices=("mineru2.5", "small"), default="mineru2.5", help="default: mineru2.5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser


def _stress_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export stress",
        description="Write a variant of a checkpoint that computes the same and is hard to quantise.",
    )
    parser.add_argument("model", type=Path, help="model directory")
    parser.add_argument("output", type=Path, help="folder of the checkpoint to write")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; see `--help`."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["synth"]:
        return _synth(_synth_parser().parse_args(argv[1:]))
    if argv[:1] == ["stress"]:
        return _stress(_stress_parser().parse_args(argv[1:]))
    parser = _export_parser()
    arguments = parser.parse_args(argv)
    allowed = ONNX_DTYPES if arguments.backend == "onnx" else TRANSFORMERS_DTYPES
    arguments.dtype = arguments.dtype or allowed[0]
    if arguments.dtype not in allowed:
        parser.error(f"--backend {arguments.backend} takes --dtype {', '.join(allowed)}")
    return _export(arguments)


def _synth(arguments: argparse.Namespace) -> int:
    from export.synth import synthesise

    counts = synthesise(arguments.preset, arguments.output, seed=arguments.seed, quiet=arguments.quiet)
    print(f"{arguments.output}: {counts['parameters']:,} parameters in {counts['tensors']} tensors")
    return 0


def _stress(arguments: argparse.Namespace) -> int:
    from export.stress import write

    n_changed = write(arguments.model, arguments.output, arguments.seed)
    print(f"{arguments.output}: outlier channels behind {n_changed} norms")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    if not arguments.debug:
        # The tracer warns of every shape it turns into a constant; the validation and the tests are what counts.
        warnings.filterwarnings("ignore")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        logging.disable(logging.WARNING)
    started_s = time.monotonic()
    from export.build import export

    manifest = export(
        arguments.model,
        arguments.output,
        dtype=arguments.dtype,
        backend=arguments.backend,
        revision=arguments.revision,
        force=arguments.force,
        check=arguments.check,
        calibration=arguments.calibration,
        quiet=arguments.quiet,
    )
    size_mb = sum(entry.bytes for entry in manifest.files.values()) / 1e6
    print(
        f"{arguments.output}: {manifest.model.id}, {manifest.backend} {manifest.dtype}, {size_mb:,.0f} MB, "
        f"{time.monotonic() - started_s:.0f} s"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
