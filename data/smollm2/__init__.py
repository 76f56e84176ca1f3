"""Recipes for the prompts that SmolLM2's drafters are trained on. Not part of the wheel."""
