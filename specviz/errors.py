"""The errors that a person meets: one clear line each, saying what to do."""

from __future__ import annotations


class SpecvizError(Exception):
    """Something the caller can mend; the command line prints its one line and exits with status 2."""


class TraceError(SpecvizError):
    """A trace file that is truncated, foreign, from a newer schema or not what it says it is."""


class ModelError(SpecvizError):
    """A model that is missing, cannot be served by this backend, or does not fit its partner."""


class ParameterError(SpecvizError):
    """An unknown method or parameter, or a value outside its range."""


class PromptError(SpecvizError):
    """A prompt that is empty, unreadable, or longer than the model's context."""
