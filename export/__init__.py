"""Build time of mineru-lambda: a Hugging Face checkpoint in, an artifact for `handler` out."""
