"""``python -m tests.papers docs/papers``: a page for each paper.

A page has the paper's claims, our reading of it, the places where its numbers disagree, and the commands.
Everything is read from ``data/published``, ``data/recipes`` and ``data/runs``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from specviz.errors import plural
from specviz.files import read_json, write_text
from specviz.models.schema import Card
from specviz.paths import folder
from specviz.replays.answers import answer
from specviz.replays.published import claims, list_published, published, title
from specviz.replays.recipes import CURVES, FIGURES, PAPERS, RECIPES, SETTINGS, Where
from specviz.replays.recorded import list_recorded, results
from specviz.replays.replays import Replay, Replays

# The name of each paper's method here, and the walkthrough that teaches it.
METHODS: Mapping[str, tuple[str, str]] = {
    "unispec": ("unispec", "07a_unispec"),
    "ssbd": ("retranslate", "09_retranslation"),
    "ssd": ("ssd", "11b_self_drafting"),
    "bild": ("bild", "03_bild"),
    "cm_asd": ("cm_asd", "10_confidence"),
}
SHORT = {"holds here": "held", "fails here": "failed", "cannot be judged here": "could not be judged"}
UNMEASURED = "not recorded"


DEFAULT, TOYS = "replays", "replays-toys"  # files of data/runs: on each recipe's own model, or on toys


@cache
def recorded(name: str) -> dict[str, Replay]:
    """The replays of a recorded file, by table."""
    file = list_recorded().get(name)
    every = None if file is None else results(file)
    return {each.table: each for each in every.tables} if isinstance(every, Replays) else {}


def about_verdicts() -> str:
    """Text on what a verdict depends on, and on how many recorded ones are from quick runs."""
    every = [each for each in recorded(DEFAULT).values() if each.verdicts]
    hasty = sum(bool(each.settings.get("quick")) for each in every)
    return (
        "`specviz replay` judges each claim on what it measures. A series that should rise or fall holds if "
        "its ends clearly differ that way and no step clearly goes the other way; neighbours may be level. A "
        "verdict depends on the machine, the model "
        f"and the suite. Those shown are recorded (`data/runs`): {hasty} of {len(every)} tables and "
        "figures with claims were measured in haste (`--quick`), the others in full, and all on few texts, "
        "so that many claims could not be judged. The commands on each page judge them on your machine."
    )


def index() -> str:
    """The list of the papers, as Markdown."""
    rows: list[tuple[str | int, ...]] = []
    for paper in PAPERS:
        tables = list_published(paper)
        names = tables["name"].tolist()
        count = sum(len(claims(name)) for name in names)
        words = [_verdict(DEFAULT, name, claim["text"])[0] for name in names for claim in claims(name)]
        verdicts = [words.count(word) for word in SHORT.values()]
        replays = [recorded(DEFAULT)[name] for name in names if name in recorded(DEFAULT)]
        pays = answer(paper, replays).words.replace(" here", "") if replays else UNMEASURED
        rows.append(
            (
                f"[{title(paper)}]({paper}.md)",
                len(tables),
                int(tables["numbers"].sum()),
                count,
                *verdicts,
                pays,
            )
        )
    return (
        "# The five papers\n\nTheir result tables are kept as printed, and `specviz replay` measures them "
        "again where it can. Each paper's page lists its claims, our reading of what it leaves open, the "
        "places where its numbers disagree with each other or with its text, and the commands.\n\n"
        + _table(("paper", "tables", "printed numbers", "claims", *SHORT.values(), "does it pay"), rows)
        + f"\n\n{about_verdicts()}"
        + "\n\nIn a checkout, `python -m tests.papers docs/papers` generates these pages from "
        "`data/published`, `data/recipes` and `data/runs`.\n"
    )


def page(paper: str) -> str:
    """A paper's page as Markdown."""
    method, book = METHODS[paper]
    number = book.partition("_")[0]
    tables = list_published(paper)
    names = tables["name"].tolist()
    parts = [
        f"# {title(paper)}\n",
        f"The method is `{method}` here; [walkthrough {number}](../../notebooks/{book}.ipynb) teaches it. "
        f"The package has {len(tables)} of its tables with {int(tables['numbers'].sum())} printed numbers; "
        f'`sv.published("{names[0]}")` returns one.\n',
        "## Its claims\n", about_verdicts() + "\n", _claims(names),
        "## The commands\n", _commands(paper, names),
        "## The models\n", _models(paper),
        "## Our reading\n", _reading(paper),
        "## Where its numbers disagree\n", _errata(names),
    ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


def _claims(names: Sequence[str]) -> str:
    parts = [_judged(DEFAULT, names)]
    toys = [name for name in names if _models_of(TOYS, name) - _models_of(DEFAULT, name)]
    if toys:
        parts += ["The same claims on the toy models:\n", _judged(TOYS, toys)]
    return "\n".join(parts)


def _judged(record: str, names: Sequence[str]) -> str:
    """Each claim with its recorded verdict, and the settings that the tables were measured on."""
    rows = [
        (_short(name), claim["text"], *_verdict(record, name, claim["text"]))
        for name in names
        for claim in claims(name)
    ]
    text = _table(("table", "claim", "verdict", "measured"), rows) + "\n"
    lines = _settings(record, names)
    if lines:
        lines += _earlier(record, names[0].partition("/")[0])
    return text + "\nMeasured on:\n\n" + "".join(lines) if lines else text


def _models_of(record: str, name: str) -> set[str]:
    replay = recorded(record).get(name)
    return {source.model for source in replay.sources} if replay else set()


def _verdict(record: str, name: str, claim: str) -> tuple[str, str]:
    """A recorded verdict on a claim, and the numbers that it is based on."""
    replay = recorded(record).get(name)
    each = next((each for each in replay.verdicts if each.claim == claim), None) if replay else None
    if each is None:
        return UNMEASURED, ""
    return SHORT[each.verdict], "; ".join(filter(None, (each.numbers, each.reason)))


def _settings(record: str, names: Sequence[str]) -> list[str]:
    """Models, prompts and machines of the tables of a recorded file, one line per setting."""
    groups: dict[str, list[str]] = {}
    for name in names:
        sources = recorded(record)[name].sources if name in recorded(record) else []
        if not sources:
            continue
        models = _many([source.model for source in sources])
        suites = _many([source.suite for source in sources if source.suite])
        where = _many(
            [
                f"{source.processor}, {plural(source.threads, 'thread')}, {source.dtype}, "
                f"{source.kernels} kernels, {source.date}"
                for source in sources
            ]
        )
        quick = "; quick" * bool(recorded(record)[name].settings.get("quick"))
        groups.setdefault(f"{models}; prompts {suites}; {where}{quick}", []).append(_short(name))
    return [f"- {_many(tables)}: {setting}\n" for setting, tables in groups.items()]


def _earlier(record: str, paper: str) -> list[str]:
    """Drafters that were other weights than the package's when a paper's tables and figures were recorded."""
    groups: dict[str, list[str]] = {}
    for name, replay in recorded(record).items():
        for source in replay.sources if name.startswith(f"{paper}/") else ():
            card = folder("models") / source.drafter / "scores.json"
            now = read_json(card, Card).get("content", "") if card.is_file() else ""
            if now and source.drafter_weights not in ("", now[:16]):
                line = f"an earlier `{source.drafter}` (weights {source.drafter_weights}) than "
                line += f"the package has now ({now[:16]})"
                groups.setdefault(line, []).append(_short(name))
    return [f"- {_many(sorted(tables))}: {line}\n" for line, tables in groups.items()]


def _commands(paper: str, names: Sequence[str]) -> str:
    rows = []
    for name in names:
        caption = published(name).attrs["caption"]
        command = f"`specviz replay {name} --quick`" if name in RECIPES else f"not replayed: {_why(name)}"
        rows.append((_short(name), caption, command))
    rows += [
        (_short(name), curve.caption, f"`specviz replay {name} --quick`")
        for name, curve in CURVES.items()
        if name.startswith(f"{paper}/")
    ]
    return (
        "With `--quick` a replay uses a few prompts and takes half a minute to several minutes per table; "
        "without it, a replay can take hours. `specviz bench report DIR --html` makes a page of a result.\n\n"
        + _table(("table", "what it shows", "command"), rows)
        + "\n"
    )


def _models(paper: str) -> str:
    """Models that the tables are measured on, and what a real model leaves empty or defines differently."""
    lines: dict[tuple[str, str, str, str], list[str]] = {}
    apart: dict[tuple[str, str], list[str]] = {}
    for name, recipe in (RECIPES | CURVES).items():
        if not name.startswith(f"{paper}/"):
            continue
        real = recipe.real
        command = f"`specviz models get {real.get('download', real['model'])}`" if real else "–"
        suite = f"`{real['suite']}`" if real.get("suite") else "–"
        line = f"`{recipe.model}`", f"`{real['model']}`" if real else "–", suite, command
        lines.setdefault(line, []).append(_short(name))
        if not real:
            continue
        empty = [(_where(where), f"empty: {why}") for where, why in real.get("absent", ())]
        read = [(what, ours) for what, theirs, ours in real.get("differs", ()) if (what, theirs, ours) not in
                [tuple(each) for each in recipe.differs]]  # fmt: skip
        for each in (*empty, *read):
            apart.setdefault(each, []).append(_short(name))
    heads = ("tables", "bundled model", "real model", "its suite", "downloaded by")
    text = "A table is measured on one model; `--model` names another.\n\n"
    if any(real != "–" for _, real, _, _ in lines):
        text = (
            "A table is measured on one model: the real one if it is downloaded, otherwise the bundled one; "
            "`--model` can ask for the bundled one.\n\n"
        )
    text += _table(heads, [(_many(names), *line) for line, names in lines.items()]) + "\n"
    if apart:
        heads_apart = ("on the real model", "what is otherwise", "tables")
        text += "\n" + _table(heads_apart, [(*k, _many(v)) for k, v in apart.items()]) + "\n"
    return text


def _why(name: str) -> str:
    return SETTINGS.get(name) or FIGURES.get(name) or "not possible here"


def _reading(paper: str) -> str:
    """Definitions that differ from the paper's, and rows that cannot be reproduced here."""
    recipes = {name: recipe for name, recipe in (RECIPES | CURVES).items() if name.startswith(f"{paper}/")}
    differs: dict[tuple[str, str, str], list[str]] = {}
    absent: dict[tuple[str, str], list[str]] = {}
    for name, recipe in recipes.items():
        for what, theirs, ours in recipe.differs:
            differs.setdefault((what, theirs, ours), []).append(_short(name))
        for where, why in recipe.absent:
            absent.setdefault((_where(where), why), []).append(_short(name))
    parts = [
        "These definitions differ from the paper's.\n" if differs else "All definitions are the paper's.\n"
    ]
    if differs:
        parts.append(
            _table(("what", "in the paper", "here", "tables"), [(*k, _many(v)) for k, v in differs.items()])
        )
    if absent:
        parts.append("\nThese rows cannot be reproduced here.\n")
        parts.append(_table(("row", "why", "tables"), [(*k, _many(v)) for k, v in absent.items()]))
    return "\n".join(parts) + "\n"


def _errata(names: Sequence[str]) -> str:
    rows = [(_short(name), remark) for name in names for remark in published(name).attrs["known"]]
    if not rows:
        return "We found none.\n"
    return (
        "A test checks the printed numbers against each other. These are the places where they disagree with "
        "each other or with the text.\n\n" + _table(("table", "what"), rows)
    )


def _where(where: Where) -> str:
    values = [", ".join(map(str, v)) if isinstance(v, list) else str(v) for v in where.values()]
    return "; ".join(values)


def _short(name: str) -> str:
    return name.partition("/")[2]


def _many(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        "| " + " | ".join(str(c).replace("|", "\\|").strip() for c in line) + " |" for line in lines
    )


def write(folder: Path) -> list[Path]:
    """Write all pages into a folder, replacing existing ones."""
    texts = {"index": index(), **{paper: page(paper) for paper in PAPERS}}
    return [write_text(folder / f"{name}.md", text, force=True) for name, text in texts.items()]


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])):
        print(path)
