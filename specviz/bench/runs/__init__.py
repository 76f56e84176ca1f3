"""Runs of a plan: models x methods x suites, every row on disk, resumable, handed to any executor."""
