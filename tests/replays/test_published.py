"""The papers' numbers: how they are stored, and whether they are consistent.

Each paper's ``tables.json`` declares which numbers must agree (see ``data/published/README.md``), and lists
the places where they do not. An unlisted disagreement fails, and so does a listed one that agrees after all.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from itertools import pairwise
from operator import mul, sub, truediv
from pathlib import Path
from typing import Any

import pytest

import specviz
from specviz.replays import published as papers

ROOT = Path(__file__).parents[2] / "data" / "published"
LAST = ["metric", "value", "unit", "device", "model"]
Row = dict[str, str]
Verdict = tuple[Row, bool, str]  # the cell, whether it is consistent, and the comparison


@cache
def about(paper: str) -> dict[str, Any]:
    return json.loads((ROOT / paper / "tables.json").read_text(encoding="utf8"))


@cache
def rows(name: str) -> list[Row]:
    with (ROOT / f"{name}.csv").open(encoding="utf8", newline="") as lines:
        return list(csv.DictReader(lines, strict=True))


PAPERS = sorted(path.parent.name for path in ROOT.glob("*/tables.json"))
TABLES = sorted(f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.csv"))


def entry(name: str) -> dict[str, Any]:
    paper, table = name.split("/")
    return about(paper)["tables"][table]


def chosen(row: Row, selector: dict[str, Any]) -> bool:
    """Whether a row matches the selector: every column has the wanted value, or one of a list."""
    return all(row[c] in (want if isinstance(want, list) else [want]) for c, want in selector.items())


def without(row: Row, *columns: str) -> tuple[tuple[str, str], ...]:
    return tuple((c, v) for c, v in row.items() if c not in ("value", *columns))


class Rounded:
    """The interval of numbers that print alike: half a unit of the last digit either side."""

    def __init__(self, low: Decimal, high: Decimal):
        self.low, self.high = low, high

    @classmethod
    def printed(cls, text: str) -> Rounded:
        number = Decimal(text)
        half = Decimal(1).scaleb(int(number.as_tuple().exponent)) / 2
        return cls(number - half, number + half)

    def with_other(self, other: Rounded, operation: Any) -> Rounded:
        ends = [operation(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Rounded(min(ends), max(ends))

    def times(self, factor: Decimal) -> Rounded:
        return Rounded(self.low * factor, self.high * factor)

    def meets(self, other: Rounded) -> bool:
        return self.low < other.high and other.low < self.high

    def __repr__(self) -> str:
        return f"{self.low:.6g} to {self.high:.6g}"


def against(row: Row, expected: Rounded) -> Verdict:
    return row, Rounded.printed(row["value"]).meets(expected), f"{row['value']} against {expected}"


def mean(table: list[Row], check: dict[str, Any]) -> Iterator[Verdict]:
    over, total = check["over"], check["total"]
    cells = [row for row in table if chosen(row, check.get("of", {}))]
    for row in cells:
        if row[over] != total:
            continue
        others = [
            Rounded.printed(each["value"])
            for each in cells
            if without(each, over) == without(row, over)
            and (each[over] in check["members"] if "members" in check else each[over] != total)
        ]
        if others:
            n = len(others)
            yield against(row, Rounded(sum(o.low for o in others) / n, sum(o.high for o in others) / n))


def average(table: list[Row], check: dict[str, Any]) -> Iterator[Verdict]:
    """Check a mean of cells that the paper's text states."""
    cells = [row for row in table if chosen(row, check["of"])]
    if cells:
        numbers = [Rounded.printed(row["value"]) for row in cells]
        n = len(numbers)
        expected = Rounded(sum(o.low for o in numbers) / n, sum(o.high for o in numbers) / n)
        yield against(cells[0] | {"value": check["value"]}, expected)


def pair(table: list[Row], check: dict[str, Any]) -> Iterator[Verdict]:
    """Check a number that is the ratio, difference or product of two others."""
    operation = {"ratio": truediv, "difference": sub, "product": mul}[check["check"]]
    # Units follow metrics, so a partner with another metric has another unit.
    index = {without(row, "unit"): row for row in table}
    for row in table:
        if not chosen(row, check["of"]):
            continue
        partners = [index.get(without(row | check[side], "unit")) for side in ("first", "second")]
        if None in partners:
            continue
        first, second = (Rounded.printed(partner["value"]) for partner in partners)
        told = row | {"value": check.get("value", row["value"])}  # stated in the text, or the row's number
        yield against(told, first.with_other(second, operation).times(Decimal(str(check.get("scale", 1)))))


def same(table: list[Row], check: dict[str, Any]) -> Iterator[Verdict]:
    for row in table:
        if not chosen(row, check["of"]):
            continue
        there = rows(check["table"])
        wanted = {c: v for c, v in (row | check.get("as", {})).items() if c in there[0] and c != "value"}
        for column, names in check.get("rename", {}).items():
            wanted[column] = names.get(wanted[column], wanted[column])
        found = [each for each in there if chosen(each, wanted)]
        assert len(found) <= 1, f"{wanted} is not one number of {check['table']}"
        if found:
            yield against(row, Rounded.printed(found[0]["value"]))


def at_most(table: list[Row], check: dict[str, Any]) -> Iterator[Verdict]:
    index = {without(row, "unit"): row for row in table}
    for row in table:
        other = index.get(without(row | check["as"], "unit")) if chosen(row, check["of"]) else None
        if other is not None:
            holds = Rounded.printed(row["value"]).low < Rounded.printed(other["value"]).high
            yield row, holds, f"{row['value']}, to be at most {other['value']}"


def says(table: list[Row], check: dict[str, Any]) -> Iterator[Verdict]:
    for row in table:
        if chosen(row, check["of"]):
            holds = Decimal(row["value"]) == Decimal(check["value"])
            yield row, holds, f"{row['value']}, to be {check['value']}"


def extreme(table: list[Row], check: dict[str, Any]) -> Iterator[Verdict]:
    cells = [row for row in table if chosen(row, check["of"])]
    if cells:
        pick = max if check["check"] == "max" else min
        row = pick(cells, key=lambda each: Decimal(each["value"]))
        _, holds, told = against(row, Rounded.printed(check["value"]))
        yield row, holds, f"{check['check']} is {told}"


def grouped(table: list[Row], check: dict[str, Any]) -> list[list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in table:
        if chosen(row, check["of"]) and row[check["over"]] in check.get("members", [row[check["over"]]]):
            groups.setdefault(without(row, check["over"]), []).append(row)
    return list(groups.values())


def best(table: list[Row], check: dict[str, Any]) -> Iterator[Verdict]:
    pick = max if check.get("by", "max") == "max" else min
    for group in grouped(table, check):
        top = pick(Decimal(row["value"]) for row in group)
        for row in group:
            if row[check["over"]] == check["is"]:
                yield row, Decimal(row["value"]) == top, f"{row['value']} where the best is {top}"


def ordered(table: list[Row], check: dict[str, Any]) -> Iterator[Verdict]:
    sign = 1 if check["check"] == "rising" else -1
    for group in grouped(table, check):
        for before, row in pairwise(group):
            step = sign * (Decimal(row["value"]) - Decimal(before["value"]))
            yield row, step >= 0, f"{row['value']} after {before['value']}"


KINDS = {
    "mean": mean, "average": average, "ratio": pair, "difference": pair, "product": pair,
    "same": same, "at_most": at_most, "is": says, "max": extreme, "min": extreme,
    "best": best, "rising": ordered, "falling": ordered,
}  # fmt: skip


def wrong(name: str, label: str, table: list[Row] | None = None) -> list[str]:
    """List a check's unlisted disagreements, and listed ones that it does not find."""
    check = entry(name)["checks"][label]
    verdicts = list(KINDS[check["check"]](rows(name) if table is None else table, check))
    assert verdicts, f"{name}: the check {label!r} compares nothing"
    known = [each for each in entry(name).get("known", []) if each.get("check") == label]
    listed = [at for each in known for at in each["at"]]
    idle = [at for at in listed if not any(chosen(row, at) for row, _, _ in verdicts)]
    problems = [f"{at} is listed, but selects nothing" for at in idle]
    for row, holds, told in verdicts:
        if holds == any(chosen(row, at) for at in listed):
            verdict = "listed, but adds up" if holds else "does not add up"
            problems.append(f"{dict(without(row))}: {told}: {verdict}")
    return problems


CHECKS = [(name, label) for name in TABLES for label in entry(name).get("checks", {})]


def test_numbers_add_up_but_where_listed():
    problems = [f"{name}, {label}: {each}" for name, label in CHECKS for each in wrong(name, label)]
    assert len(CHECKS) > 100 and not problems, "\n".join(problems)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_is_described(paper):
    described = about(paper)
    assert set(described) == {"title", "tables", "left_out"}
    assert set(described["tables"]) == {path.stem for path in (ROOT / paper).glob("*.csv")}
    assert {p.suffix for p in (ROOT / paper).iterdir()} == {".csv", ".json"}
    for left in described["left_out"]:
        assert set(left) == {"what", "why"} and all(left.values())


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_tidy(name):
    table = rows(name)
    columns = list(table[0])
    assert columns[-5:] == LAST and len(columns) > 5
    for row in table:
        assert None not in row and None not in row.values(), f"{row} has too many or too few cells"
        assert all(text == text.strip() for text in row.values())
        assert all(row[c] for c in columns if c not in ("unit", "device", "model")), f"{row} has an empty key"
        assert Decimal(row["value"]).is_finite()
    keys = [without(row, "unit") for row in table]
    assert len(keys) == len(set(keys)), f"twice: {[k for k in keys if keys.count(k) > 1][:4]}"
    units = {}
    for row in table:
        assert units.setdefault(row["metric"], row["unit"]) == row["unit"], "one metric, two units"


@pytest.mark.parametrize("name", TABLES)
def test_a_description_fits_its_table(name):
    table, described = rows(name), entry(name)
    needed = {"caption", "place", "numbers", "sum", "down", "across"}
    assert needed <= set(described) <= needed | {"note", "empty", "checks", "known", "claims"}
    columns = [c for c in table[0] if c not in ("value", "unit")]
    varies = {c for c in columns if len({row[c] for row in table}) > 1}
    keys = set(columns) - {"metric", "device", "model"}
    axes = described["down"] + described["across"]
    assert len(axes) == len(set(axes)) and varies | keys <= set(axes) <= set(columns)
    for empty in described.get("empty", []):
        cell = {c: v for c, v in empty.items() if c != "printed"}
        assert cell and not [row for row in table if chosen(row, cell)], f"{cell} is said to be empty"
        for column, values in cell.items():
            there = {row[column] for row in table}
            assert there.issuperset(values if isinstance(values, list) else [values]), f"no such {column}"
    for known in described.get("known", []):
        assert known["text"].strip() and ("check" in known) == ("at" in known)
        assert known.get("check") is None or known["check"] in described["checks"]


CLAIM = {"text", "question", "of"}
ASKED = {"order": {"check", "over"}, "pays": set(), "faster": set(), "size": set(), "lossless": set()}
# Claims that the papers' own numbers do not bear out; `known` lists them.
NOT_IN_PRINT = {
    ("unispec/table1", "UniSpec's τ is the highest"), ("unispec/table5", "UniSpec's τ is the highest"),
    ("ssd/table2", "Longer drafts could save more steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in TABLES if entry(name).get("claims")])
def test_a_claim_holds_of_what_is_printed(name):
    """A claim declared for the wrong rows, or in the wrong direction, would fail here."""
    table = rows(name)
    for claim in entry(name)["claims"]:
        assert set(claim) >= CLAIM | ASKED[claim["question"]], claim
        assert set(claim) <= CLAIM | {"check", "over", "is", "by", "members", "ignore", "every"}, claim
        cells = [row for row in table if chosen(row, claim["of"])]
        assert cells, f"{claim['text']}: selects nothing"
        holds = True
        if claim["question"] in ("pays", "faster"):
            assert {row["metric"] for row in cells} == {"speedup"}
            holds = all(Decimal(row["value"]) > 1 for row in cells)
        if "over" in claim:
            free = (claim["over"], *claim.get("ignore", ()))
            groups: dict[Any, list[Row]] = {}
            for row in cells:
                if row[claim["over"]] in claim.get("members", [row[claim["over"]]]):
                    groups.setdefault(without(row, *free), []).append(row)
            groups = {key: group for key, group in groups.items() if len(group) > 1}
            assert groups, f"{claim['text']}: compares nothing"
            sign = -1 if claim.get("by") == "min" or claim["check"] == "falling" else 1
            for group in groups.values():
                values = [sign * Decimal(row["value"]) for row in group]
                if claim["check"] == "best":
                    own = [v for row, v in zip(group, values) if row[claim["over"]] == claim["is"]]
                    assert len(own) == 1, f"{claim['text']}: {claim['is']} is not one of {group}"
                    holds &= own[0] == max(values)
                else:
                    holds &= values[-1] > values[0] and values == sorted(values)
        assert holds != ((name, claim["text"]) in NOT_IN_PRINT), claim["text"]


def test_the_page_lists_every_unit_and_every_metric_of_a_result():
    page = (ROOT / "README.md").read_text(encoding="utf8")
    settings = ("bild/table2", "unispec/table4", "unispec/table14")
    names = {row["unit"] for name in TABLES for row in rows(name)} - {""}
    names |= {row["metric"] for name in TABLES if name not in settings for row in rows(name)}
    assert not [name for name in names if f"`{name}`" not in page and not name.endswith("_gain")]


def test_no_digit_was_changed():
    # Consistency checks miss most changed last digits, which are within rounding.
    values = {name: [Decimal(row["value"]) for row in rows(name)] for name in TABLES}
    sums = {name: (len(each), str(sum(each))) for name, each in values.items()}
    assert sums == {name: (entry(name)["numbers"], entry(name)["sum"]) for name in TABLES}


def changed(name: str, at: dict[str, str], value: str) -> list[Row]:
    """A copy of a table with one number changed."""
    table = [row | {"value": value} if chosen(row, at) else row for row in rows(name)]
    assert sum(a != b for a, b in zip(table, rows(name))) == 1
    return table


def test_a_wrong_digit_is_found():
    cell = {"device": "NVIDIA A40", "model": "Qwen-3-8B", "method": "PLD", "task": "RAG", "metric": "speedup"}
    assert not wrong("unispec/table1", "average")
    assert wrong("unispec/table1", "average", changed("unispec/table1", cell, "1.32"))
    cell = {"gpus": "2", "method": "Ours", "task": "Code", "metric": "throughput"}
    assert wrong("unispec/table7", "speedup", changed("unispec/table7", cell, "75.57"))
    cell = {"method": "BiLD (Match Latency)", "metric": "bleu"}
    assert wrong("bild/table3", "prose: 0.61 BLEU higher", changed("bild/table3", cell, "40.64"))
    cell = {"method": "BiLD (Aligned)", "score_drop": "minimal", "dataset": "XSUM", "metric": "speedup"}
    assert wrong("bild/table1", "prose: aligned, mean 1.61", changed("bild/table1", cell, "1.80"))


def test_a_listed_place_that_adds_up_is_found():
    cell = {"draft_size": "75", "metric": "expected_throughput"}
    table = changed("unispec/table15", cell, "98.18")
    assert not wrong("unispec/table15", "equation 2")
    assert any("listed, but adds up" in p for p in wrong("unispec/table15", "equation 2", table))


@pytest.mark.parametrize("name", TABLES)
def test_the_loader_gives_what_is_in_the_file(name):
    frame, table = specviz.published(name), rows(name)
    paper, stem = name.split("/")
    keys = [c for c in table[0] if c not in LAST]
    assert list(frame) == ["paper", "table", *keys, "metric", "value", "printed", "unit", "device", "model"]
    assert set(frame.paper) == {paper} and set(frame.table) == {stem}
    assert list(frame.printed) == [row["value"] for row in table]
    assert frame.value.dtype == float and list(frame.value) == [float(row["value"]) for row in table]
    for column in ("metric", "unit", "device", "model"):
        assert list(frame[column]) == [row[column] for row in table]
    for key in keys:
        texts = [row[key] for row in table]
        numbers = frame[key].dtype.kind in "if"
        assert list(frame[key]) == ([float(text) for text in texts] if numbers else texts)
    assert frame.attrs["caption"] == entry(name)["caption"]
    assert len(frame.attrs["known"]) == len(entry(name).get("known", []))


def test_keys_that_are_numbers_come_as_numbers():
    assert specviz.published("unispec/table13").draft_size.max() == 125
    assert set(specviz.published("ssbd/table3").beta) >= {"RT", "0.5", "CD"}


def test_the_list_names_every_table():
    listed = specviz.list_published()
    assert sorted(listed.name) == TABLES
    assert list(listed.numbers) == [len(rows(name)) for name in listed.name]
    assert list(listed.known) == [len(entry(name).get("known", [])) for name in listed.name]
    assert set(specviz.list_published("ssbd").paper) == {"ssbd"}
    tables = list(specviz.list_published("unispec").table)
    assert tables == sorted(tables, key=lambda table: int(table.removeprefix("table")))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("unispec/tabel3", "unispec has no table 'tabel3'; did you mean table3"),
        ("unispeck/table1", "no paper 'unispeck'; did you mean unispec?"),
        ("zebra/table1", "no paper 'zebra'; there is .*ssbd.*unispec"),
        ("unispec", "name a table of 'unispec', such as 'unispec/table1'; there is table1, table2"),
        ("unispec/../ssbd/table2", "unispec has no table"),
        ("", "no paper ''"),
    ],
)
def test_an_unknown_table_is_told_what_there_is(name, told):
    with pytest.raises(papers.ParameterError, match=told) as caught:
        specviz.published(name)
    assert "\n" not in str(caught.value)


def test_an_unknown_paper_is_told_what_there_is():
    with pytest.raises(papers.ParameterError, match="no published paper 'unispek'; did you mean unispec"):
        specviz.list_published("unispek")
