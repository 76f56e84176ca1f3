"""Where the drafters of SmolLM2 come from: the prompts that it answers. For the repository alone."""
