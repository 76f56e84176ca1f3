"""``specviz streams`` and ``suites``: where prompts and sources come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specviz.cli.arguments import hint, writable
from specviz.cli.options import Force
from specviz.cli.terminal import screen

streams_app = typer.Typer(help="Make sources that arrive in updates.")


@streams_app.command()
def simulate(
    text: Annotated[Path, typer.Argument(help="A text file in UTF-8; each line is an utterance.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file of JSON lines to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed; the next line has the next one.")] = 0,
    language: Annotated[str, typer.Option(help="The text's, as en or ja.")] = "en",
    force: Force = False,
) -> None:
    """Make up what a speech recogniser might have guessed while it heard a text."""
    from specviz.streams import from_file, save_partials, simulate_partials

    writable(out, force)
    sources = [list(stream)[-1].text for stream in from_file(text, 10**9, language)]
    found = [simulate_partials(source, seed + i, language=language) for i, source in enumerate(sources)]
    save_partials(found, out, force=force)
    updates = sum(len(list(stream)) for stream in found)
    print(f"partials: {out} ({len(found)} utterance{'s' * (len(found) != 1)}, {updates} updates)")
    model = ("--model", "town-translator") if language == "en" else ()  # it reads English alone
    print(hint("generate", "retranslate", *model, "--stream", out))


def suites(
    name: Annotated[
        str | None,
        typer.Argument(help="Which one, as flores:en-de; without it they are listed."),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Argument(help="A local copy in its makers' form; default: it is fetched once."),
    ] = None,
) -> None:
    """List the suites of prompts, or say what is in one; every --prompts takes their names."""
    from specviz.escape import visible
    from specviz.measure.report import Column, print_table
    from specviz.suites import list_suites, suite

    if name is None:
        rows = []
        for row in list_suites().to_dict("records"):
            parts = row["parts"].split(", ")
            told = f"{parts[0]}, {parts[1]} and {len(parts) - 2} more" if len(parts) > 7 else row["parts"]
            rows.append([row["name"], told, row["about"], row["licence"]])
        columns = [
            Column("suite"), Column(":part", folds=14), Column("what", folds=30), Column("licence", folds=12),
        ]  # fmt: skip
        print_table(screen(), columns, rows)
        return
    found = suite(name, path)
    counts = found.counts
    print(f"{visible(found.name)}: {len(found):,} prompts, licence: {found.licence or 'not said'}")
    headings = [Column("kind"), *(Column(visible(str(code)), True) for code in counts.columns)]
    cells = [[visible(str(kind)), *map(str, values)] for kind, values in zip(counts.index, counts.values)]
    print_table(screen(), headings, cells)
    for kind in counts.index:
        first = next(p for p in found if (p.get("kind") or "–") == kind)
        asked = first["turns"][0] if "turns" in first else first["prompt"]
        said = asked if isinstance(asked, str) else asked[-1]["content"]
        line = " ".join(said.split())
        print(
            f"\n{visible(str(kind))} {visible(first['id'])}: {visible(line[:200])}{'…' * (len(line) > 200)}"
        )
