"""The errors that a person meets: one clear line each, saying what to do."""

from __future__ import annotations

from textwrap import shorten


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


def one_line(error: BaseException | str, most: int = 160) -> str:
    """What a library said in many lines, in one, cut between words; its kind, where it said nothing."""
    return shorten(str(error), most, placeholder=" …") or type(error).__name__
