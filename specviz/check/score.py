"""The score file: the best state that each exercise has reached in the working directory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from ..errors import SpecvizError
from ..files import exists, read_json, write_text
from .result import RIGHT, TODO, WRONG, Result

FILE = "specviz-exercises.json"
EXERCISES = ("greedy_verifier", "rejection_rule", "bild_rollback", "tree_mask")
ORDER = (TODO, WRONG, RIGHT)  # from the worst state to the best

States: TypeAlias = dict[str, Literal["right", "wrong", "todo"]]  # by the exercise's name


def keep(result: Result) -> Result:
    """Keep an exercise's best state in the score file, and return the result with the score."""
    path = Path(FILE)
    try:
        before: States = read_json(path, States, "delete it to begin again") if exists(path) else {}
        best = max(before.get(result.exercise, TODO), result.state, key=ORDER.index)
        states: dict[str, str] = {**before, result.exercise: best}
        write_text(path, json.dumps(states, indent=2) + "\n", force=True)
    except SpecvizError as error:  # the verdict matters more than the score
        return replace(result, score=f"The score was not kept: {error}")
    right = sum(states.get(name) == RIGHT for name in EXERCISES)
    return replace(result, score=f"{right} of {len(EXERCISES)} right ({FILE})")
