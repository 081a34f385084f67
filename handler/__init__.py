"""Run time of mineru-lambda: one document page in, Markdown and blocks out, on CPU."""

__version__ = "0.1.0"
