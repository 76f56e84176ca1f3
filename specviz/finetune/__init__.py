"""Train drafters for a user's own model: align a draft model, or train an EAGLE head on its answers."""
