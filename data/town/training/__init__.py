"""The recipes that made the bundled models: ``python -m town.training NAME``."""
