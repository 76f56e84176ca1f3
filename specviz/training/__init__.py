"""The recipes that made the bundled models: ``python -m specviz.training NAME``."""
