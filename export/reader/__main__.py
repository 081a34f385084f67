"""`python -m export.reader train|evaluate|draw|pack`: the command line of the small model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m export.reader", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train, or go on with what is in the folder")
    train.add_argument("--out", type=Path, required=True, help="folder of state, log and checkpoint")
    train.add_argument("--hours", type=float, default=8.0)
    train.add_argument("--steps", type=int, help="step to end at; the rate falls over the last fifth")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--lr", type=float, default=1.5e-3)
    train.add_argument("--threads", type=int, default=2)
    train.add_argument("--start", type=Path, help="start file to begin with, where the folder has no state yet")
    pack = commands.add_parser("pack", help="write a training's weights as a start file")
    pack.add_argument("state", type=Path, help="state.pt of a training")
    pack.add_argument("output", type=Path)
    evaluate = commands.add_parser("evaluate", help="measure a checkpoint or an artifact on unseen crops and pages")
    evaluate.add_argument("model", type=Path, help="model directory (Transformers, fp32) or artifact")
    evaluate.add_argument("--pages", type=int, default=200)
    evaluate.add_argument("--crops", type=int, default=2000)
    draw = commands.add_parser("draw", help="draw pages with their truth")
    draw.add_argument("--out", type=Path, required=True)
    draw.add_argument("--pages", type=int, default=3)
    draw.add_argument("--seed", type=int, default=1_000_000)
    draw.add_argument("--width-px", type=int, default=1100)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; see `--help`."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "train":
        from export.reader.train import Plan, train

        train(
            Plan(
                out=arguments.out,
                hours=arguments.hours,
                seed=arguments.seed,
                lr=arguments.lr,
                total_steps=arguments.steps,
                n_threads=arguments.threads,
                start=arguments.start,
            )
        )
    elif arguments.command == "pack":
        from export.reader.start import pack

        print(f"{arguments.output}: step {pack(arguments.state, arguments.output)}")
    elif arguments.command == "evaluate":
        from export.reader.evaluate import evaluate

        evaluate(arguments.model, arguments.pages, arguments.crops)
    else:
        from export.reader.examples import write_pages

        write_pages(arguments.out, arguments.pages, arguments.seed, arguments.width_px)
    return 0


if __name__ == "__main__":
    sys.exit(main())
