"""``specviz streams`` and ``suites``: make sources that arrive in updates, and list prompt suites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specviz.cli.arguments import hint, writable
from specviz.cli.options import Force, argument, option
from specviz.cli.terminal import screen
from specviz.errors import plural

streams_app = typer.Typer(help="Make sources that arrive in updates.")


@streams_app.command()
def simulate(
    text: Annotated[Path, argument("A text file in UTF-8; each line is an utterance.")],
    out: Annotated[Path, option("The file of JSON lines to write.", "--out", "-o")],
    seed: Annotated[int, option("Seed; each following line uses the next seed.", min=0)] = 0,
    language: Annotated[str, option("The text's language, such as en or ja.")] = "en",
    force: Force = False,
) -> None:
    """Simulate a speech recogniser's partial results for a text."""
    from specviz.streams import from_file, save_partials, simulate_partials

    writable(out, force)
    sources = [list(stream)[-1].text for stream in from_file(text, 10**9, language)]
    made = [simulate_partials(source, seed + i, language=language) for i, source in enumerate(sources)]
    save_partials(made, out, force=force)
    updates = sum(len(list(stream)) for stream in made)
    print(f"partials: {out} ({plural(len(made), 'utterance')}, {updates:,} updates)")
    model = ("--model", "town-translator") if language == "en" else ()  # it reads only English
    print(hint("generate", "retranslate", *model, "--stream", out))


def suites(
    name: Annotated[str | None, argument("Which suite, such as flores:en-de; without it, list them.")] = None,
    path: Annotated[
        Path | None, argument("A local copy in its authors' format; default: fetch it once.")
    ] = None,
) -> None:
    """List the prompt suites, or show the contents of one. Every --prompts option takes their names."""
    from specviz.escape import visible
    from specviz.measure.report import Column, print_table
    from specviz.suites import list_suites, suite

    if name is None:
        rows = []
        for row in list_suites().to_dict("records"):
            parts = row["parts"].split(", ")
            parts_text = (
                f"{parts[0]}, {parts[1]} and {len(parts) - 2} more" if len(parts) > 7 else row["parts"]
            )
            origin = "bundled" if row["bundled"] else "fetched"
            rows.append([row["name"], parts_text, row["about"], origin, row["licence"]])
        columns = [
            Column("suite"), Column(":part", folds=14), Column("what", folds=24), Column("from"),
            Column("licence", folds=12),
        ]  # fmt: skip
        print_table(screen(), columns, rows)
        return
    prompts = suite(name, path)
    counts = prompts.counts
    count = plural(len(prompts), "prompt")
    print(f"{visible(prompts.name)}: {count}, licence: {prompts.licence or 'not stated'}")
    headings = [Column("kind"), *(Column(str(code), True) for code in counts.columns)]
    cells = [[str(kind), *map(str, values)] for kind, values in zip(counts.index, counts.values)]
    print_table(screen(), headings, cells)
    for kind in counts.index:
        first = next(p for p in prompts if (p.get("kind") or "–") == kind)
        prompt = first["turns"][0] if "turns" in first else first["prompt"]
        line = " ".join((prompt if isinstance(prompt, str) else prompt[-1]["content"]).split())
        print(
            f"\n{visible(str(kind))} {visible(first['id'])}: {visible(line[:200])}{'…' * (len(line) > 200)}"
        )
