"""``python -m tests.stills SITE``: a still for each walkthrough, from its pictures when the site was built.

`SITE` is a folder that ``specviz site --execute`` wrote. Each still is one of the walkthrough's own pictures,
on white, so that it reads on a dark page too; GitHub shows it in the first cell, where it shows no output.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path

from PIL import Image

STILLS = Path(__file__).parents[1] / "notebooks" / "stills"
WIDE, MOST = 880, 60_000  # pixels, bytes
# The most telling picture that answers no prediction, counted from 0; the first, unless one is named.
CHOSEN = {
    "00": 2, "01": 1, "02": 3, "05": 1, "06": 2, "07a": 1, "08": 1, "11a": 1,
    "11b": 5, "11c": 1,
}  # fmt: skip


def pictures(book: Path) -> list[bytes]:
    """The pictures in an executed walkthrough, in order."""
    cells = json.loads(book.read_text(encoding="utf8"))["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    return [base64.b64decode(data["image/png"]) for data in outputs if "image/png" in data]


def still(picture: bytes) -> bytes:
    """A picture as a still: on white, no wider than a page, with as many colours as the size limit allows."""
    with Image.open(io.BytesIO(picture)) as image:
        paper = Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image.convert("RGBA"))
    flat = paper.convert("RGB")
    if flat.width > WIDE:
        flat = flat.resize((WIDE, round(flat.height * WIDE / flat.width)), Image.Resampling.LANCZOS)
    for colours in (128, 64, 32, 16, 8):
        data = io.BytesIO()
        flat.quantize(colours, dither=Image.Dither.NONE).save(data, "PNG", optimize=True)
        if data.tell() < MOST:
            return data.getvalue()
    raise SystemExit("a still weighs too much: choose another picture")


def main(site: Path) -> None:
    STILLS.mkdir(exist_ok=True)
    for book in sorted((site / "notebooks").glob("[0-9]*.ipynb")):
        drawn = pictures(book)
        if not drawn:
            print(f"{book.stem}: it draws nothing")
            continue
        number = min(CHOSEN.get(book.stem.partition("_")[0], 0), len(drawn) - 1)
        path = STILLS / f"{book.stem.partition('_')[0]}.png"
        path.write_bytes(still(drawn[number]))
        print(f"{path.name}: picture {number} of {len(drawn)}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
