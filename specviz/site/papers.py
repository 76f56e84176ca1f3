"""A page for each paper: its claims, our reading, where it disagrees with itself, and the commands.

Everything is read from ``data/published`` and ``data/recipes``; ``python -m specviz.site.papers docs/papers``
writes the pages of the repository again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from specviz.files import write_text
from specviz.replays.published import claims, list_published, published, title
from specviz.replays.recipes import CURVES, FIGURES, PAPERS, RECIPES, SETTINGS, Where

# What runs a paper's method here, and the walkthrough that teaches it.
METHODS: Mapping[str, tuple[str, str]] = {
    "unispec": ("unispec", "07a_unispec"),
    "ssbd": ("retranslate", "09_retranslation"),
    "ssd": ("ssd", "11b_self_drafting"),
    "bild": ("bild", "03_bild"),
    "cm_asd": ("cm_asd", "10_confidence"),
}
JUDGED = {
    "order": "the order of the compared methods", "pays": "whether each speedup is above 1",
    "size": "whether the number is as large as printed", "lossless": "whether the texts are the same",
}  # fmt: skip
VERDICTS = (
    "`specviz replay` judges each claim on what it measures: *holds here*, *fails here* or *cannot be judged "
    "here*. A verdict depends on the machine, the model and the suite, so this page shows none; run the "
    "commands below to get them."
)


def index() -> str:
    """The list of the papers."""
    rows = []
    for paper in PAPERS:
        tables = list_published(paper)
        count = sum(len(claims(name)) for name in tables["name"])
        rows.append((f"[{title(paper)}]({paper}.md)", len(tables), int(tables["numbers"].sum()), count))
    return (
        "# The five papers\n\nTheir result tables are kept as printed, and `specviz replay` measures them "
        "again where it can. Each paper's page lists its claims, our reading of what it leaves open, the "
        "places where its numbers disagree with each other or with its text, and the commands.\n\n"
        + _table(("paper", "tables", "printed numbers", "claims"), rows)
        + "\n\nThese pages are generated from `data/published` and `data/recipes`: "
        "`python -m specviz.site.papers docs/papers`.\n"
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
        "## Its claims\n", VERDICTS + "\n", _claims(names),
        "## The commands\n", _commands(paper, names),
        "## The models\n", _models(paper),
        "## Our reading\n", _reading(paper),
        "## Where its numbers disagree\n", _errata(names),
    ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


def _claims(names: Sequence[str]) -> str:
    rows = [
        (_short(name), claim["text"], JUDGED[claim["question"]]) for name in names for claim in claims(name)
    ]
    return _table(("table", "claim", "what is judged"), rows) + "\n"


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
    """What the tables are measured on, and what of them a real model leaves empty or reads otherwise."""
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
            "A table is measured on one model: on the real one where it is downloaded, else on the bundled "
            "one, which `--model` asks for, too.\n\n"
        )
    text += _table(heads, [(_many(names), *line) for line, names in lines.items()]) + "\n"
    if apart:
        heads_apart = ("on the real model", "what is otherwise", "tables")
        text += "\n" + _table(heads_apart, [(*k, _many(v)) for k, v in apart.items()]) + "\n"
    return text


def _why(name: str) -> str:
    return SETTINGS.get(name) or FIGURES.get(name) or "not possible here"


def _reading(paper: str) -> str:
    """What is defined otherwise here, and which rows nothing here can produce."""
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
    """Write all pages into a folder, over those that are there."""
    texts = {"index": index(), **{paper: page(paper) for paper in PAPERS}}
    return [write_text(folder / f"{name}.md", text, force=True) for name, text in texts.items()]


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])):
        print(path)
