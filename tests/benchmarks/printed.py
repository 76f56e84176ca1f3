"""The papers' printed numbers by our labels, from `specviz.published` through the recipes' rows."""

from __future__ import annotations

from functools import cache
from typing import Any

from specviz import published
from specviz.measure.retranslation import RT
from specviz.replays.recipes import ALIGNED, RECIPES, UNALIGNED
from specviz.replays.replays import covers

MASKS = {"mask": "mask-k", "display": "display-only mask-k"}
CURVES = {UNALIGNED: "BiLD (Unaligned)", ALIGNED: "BiLD (Aligned)"}
DATASETS = {"translation": ("IWSLT", "WMT"), "summarization": ("XSUM", "CNN/DailyMail")}
TREES = {"chain": "Greedy", "mix": "Mix-order"}


@cache
def rows(table: str) -> list[dict[str, Any]]:
    """A published table, one row per printed number."""
    return published(table).to_dict("records")


def value(table: str, metric: str, **where: Any) -> float | None:
    """A printed number, or None if the table has none."""
    some = (row["value"] for row in rows(table) if row["metric"] == metric and covers(where, row))
    return next(some, None)


def point(table: str, metric: str, task: str, label: str) -> float | None:
    """A number from CM-ASD's tables, by our task and our setting's label."""
    recipe = RECIPES[table]
    places = [name for name, part in recipe.parts["task"].items() if part["task"] == task]
    methods = [row.where["method"] for row in recipe.rows if row.values["point"] == label]
    return value(table, metric, task=places, method=methods) if places and methods else None


def speedup_and_score(task: str, label: str) -> tuple[float | None, float | None]:
    """Speedup and score from CM-ASD's Tables I and II (translations) or IV (summaries)."""
    if task.startswith("sum"):
        table = "cm_asd/table4"
        return point(table, "speedup", task, label), point(table, "rouge_l", task, label)
    return point("cm_asd/table1", "speedup", task, label), point("cm_asd/table2", "bleu", task, label)


def retranslated(table: str, code: str, **where: Any) -> tuple[float | None, ...]:
    """COMET, NE, A/D, A/O and speedup from SSBD's tables; A/D and A/O as shares, not percent."""
    parts = RECIPES["ssbd/table2"].parts["language"]
    language = next((name for name, part in parts.items() if part["language"] == code), None)
    figures = [
        value(table, name, language=language, **where) for name in ("comet", "ne", "a_d", "a_o", "speedup")
    ]
    return tuple(x / 100 if i in (2, 3) and x is not None else x for i, x in enumerate(figures))


def setting(label: str) -> tuple[float | None, ...]:
    """SSBD's figures for a setting of Table 3 or 4, English to Chinese, by our label."""
    kind, _, k = label.partition("-")
    if kind in MASKS:
        return retranslated("ssbd/table4", "zh", mask=MASKS[kind], k=k)
    beta = f"{float(label.removeprefix('β = ')):.1f}" if label.startswith("β") else label
    return retranslated("ssbd/table3", "zh", beta=beta)


def pair(code: str, label: str) -> tuple[float | None, ...]:
    """SSBD's figures from Table 2, in which β = 0.2."""
    return retranslated("ssbd/table2", code, method="RT" if label == RT else "SSBD")


def saved(tree: str, n: int) -> float | None:
    """The share of steps saved, from SSD's Table 3."""
    percent = value("ssd/table3", "step_reduction", method=TREES.get(tree), draft_length=n)
    return None if percent is None else percent / 100


def limits(n: int) -> list[float]:
    """The share of steps that the draft's top 1, 2 ... could save, from SSD's Table 2."""
    some = (
        row for row in rows("ssd/table2") if row["metric"] == "step_reduction" and row["draft_length"] == n
    )
    return [row["value"] / 100 for row in sorted(some, key=lambda row: int(row["k"]))]


def speedups(kind: str, curve: str) -> str:
    """Speedups from BiLD's Table 1, with minimal and about one point of loss, for two data sets."""
    where = {"method": CURVES[curve], "metric": "speedup"}
    return " / ".join(
        ", ".join(
            next(r["printed"] for r in rows("bild/table1")
                 if covers(where | {"dataset": dataset, "score_drop": drop}, r))
            for drop in ("minimal", "~1 point")
        )
        for dataset in DATASETS[kind]
    )  # fmt: skip
