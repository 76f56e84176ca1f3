"""Drafters for a model of one's own: align one to it, or train an EAGLE head on its answers."""
