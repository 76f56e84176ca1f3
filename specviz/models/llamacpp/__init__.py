"""GGUF files on llama.cpp: models, contexts, and a writer. Importing this loads no llama.cpp."""

from specviz.models.llamacpp.writer import write_gguf

__all__ = ["write_gguf"]
