"""Texts on which tokenizers may disagree: from this repository, and odd ones made from a seed."""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUESTIONS = ROOT.parent / "shared" / "real" / "spec-bench" / "question.jsonl"  # only if the folder exists


def _words(text: str) -> list[str]:
    return text.split()


SPACES = [*" \t\n\r\x0b\x0c\x85\xa0\u2003\u2028\u3000", "  ", "   ", "\r\n"]
DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "½⅓Ⅷⅻ²³₄①㊿〇"]
EMOJI = _words("""
🙂 🫠 👩\u200d👩\u200d👧\u200d👦 👩🏽\u200d💻 🏳\ufe0f\u200d🌈 🧑🏿\u200d🤝\u200d🧑🏻 🇩🇪 🇩🇪🇫🇷🇧 ❤\ufe0f ☃\ufe0e
1\ufe0f\u20e3 #\ufe0f\u20e3 \u200d \ufe0f
""")
MARKED = _words("""
e\u0301 é n\u0303o Z\u0334\u0322\u031ba\u0337l\u0336g\u0335o\u0338 ǆ ǅ Ǆ ﬁﬂ
ß ẞ İ ı ſ हिन्दी में தமிழ் ภาษาไทย ก็ עִבְרִית العَرَبِيَّة 한국어
ᄒ\u1161\u11ab 日本語と漢字 龥龦\ud7ff Ελληνικά ώ\u1f7d Ω\u2126 K\u212a Å\u212b
ქართული ᏣᎳᎩ ꮳ 𝔘𝔫𝔦 𐐀𐐨 𠀀
""")
SHORTENED = _words("it's we'll I'M don'T 's 'LL they’re 'tis x'ſ 'RE'Ve o'clock ''d")
SIGNS = _words("... !? — «» $+<=>^~|` #include // /* */ ¿¡ … 、。 （） -- => _")
SPECIAL = _words("""
<|im_end|> <|im_start|> <|endoftext|> <s> </s> <unk> <pad> <|im_ im_end|> <|im_end| <0x0A> <0x00> <|eot_id|>
[INST] <<SYS>> <repo_name> <|nope|> <tool_call>
""")
WORDS = _words("the cat Sat on été NASA getHTTPResponse snake_case camelCase x1y2 Straße")
CONTROLS = [chr(i) for i in [*range(32), *range(127, 160)]]
# From an old Unicode version, since libraries disagree on newer characters.
OLD = unicodedata.ucd_3_2_0
CHARACTERS = [c for c in map(chr, range(sys.maxunicode + 1)) if OLD.category(c) not in ("Cn", "Cs", "Co")]
NEVER = [chr(0x40000 + i) for i in range(0, 0xA0000, 999)]  # unassigned code points
REPEATED = ["a", "ab", " ", "\n", "é", "=", "1", "🙂", "▁"]


def sample_texts(seed: int = 0) -> dict[str, list[str]]:
    """More than 5,000 different texts, grouped by kind."""
    rng = random.Random()

    def some(*kinds: list[str], most: int = 6, between: str = " ") -> str:
        parts = [rng.choice(rng.choice(kinds)) for _ in range(rng.randint(1, most))]
        return "".join(part + rng.choice(["", between]) for part in parts)

    def number() -> str:
        digits = rng.choice(DIGITS[:1] * 3 + DIGITS)
        text = "".join(rng.choice(digits) for _ in range(rng.randint(1, 9)))
        return rng.choice(["{}", "{}", "-{}", "{},000.5", "${}", "{}%", "x{}y", "{}th", "v{}.1"]).format(text)

    def numbers() -> list[str]:
        return [number() for _ in range(4)]

    def excerpt(texts: list[str]) -> str:
        text = rng.choice(texts)
        start = rng.randrange(len(text))
        return text[start : start + rng.choice([20, 80, 300])]

    prose = [(ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    code = [path.read_text() for path in sorted((ROOT / "specviz").rglob("*.py"))]
    code = [text for text in code if text]
    suite = [json.loads(line) for line in (ROOT / "data" / "suites" / "town.jsonl").open()]
    texts = {"languages": [text for row in suite for text in [*row["turns"], *row["references"]]]}
    if QUESTIONS.exists():
        texts["questions"] = ["\n".join(json.loads(line)["turns"]) for line in QUESTIONS.open()]
    made: dict[str, tuple[int, Callable[[], str]]] = {
        "prose": (500, lambda: excerpt(prose)),
        "code": (1000, lambda: excerpt(code)),
        "numbers": (500, lambda: some(numbers(), SPACES[:3], WORDS)),
        "spaces": (400, lambda: some(SPACES, SPACES, SPACES[:1], WORDS, most=12, between="")),
        "emoji": (300, lambda: some(EMOJI, EMOJI, WORDS)),
        "marks": (400, lambda: some(MARKED, MARKED, WORDS, SIGNS)),
        "short forms": (200, lambda: some(SHORTENED, SHORTENED, WORDS, SIGNS)),
        "special tokens": (400, lambda: some(SPECIAL, SPECIAL, WORDS, SPACES, SIGNS)),
        "control characters": (200, lambda: some(CONTROLS, WORDS, numbers())),
        "half characters": (20, lambda: some(WORDS) + chr(rng.randrange(0xD800, 0xE000)) + some(WORDS)),
        "any characters": (
            800,
            lambda: some(CHARACTERS, CHARACTERS, NEVER, WORDS, SPACES, numbers(), most=12),
        ),
        "runs": (100, lambda: rng.choice(REPEATED) * rng.randint(2, 400)),
    }
    for name, (count, make) in made.items():
        rng.seed(f"{name} {seed}")  # a changed README leaves the other kinds as they are
        kept: dict[str, None] = {}
        while len(kept) < count:
            kept[make()] = None
        texts[name] = list(kept)
    seen: set[str] = set()
    for name, kind in texts.items():
        texts[name] = [text for text in dict.fromkeys(kind) if text not in seen]
        seen.update(texts[name])
    return texts
