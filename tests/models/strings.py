"""Strings on which two tokenizers may part: texts of this repository, and odd ones made from seeds."""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUESTIONS = ROOT.parent / "shared" / "real" / "spec-bench" / "question.jsonl"  # where the folder has them
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\x0b",
    "\x0c",
    "\x85",
    "\xa0",
    "\u2003",
    "\u2028",
    "\u3000",
]
DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "½⅓Ⅷⅻ²³₄①㊿〇"]
EMOJI = [
    "🙂", "👩‍👩‍👧‍👦", "👩🏽‍💻", "🏳️‍🌈", "🇩🇪", "🇩🇪🇫🇷🇧", "❤️", "☃︎", "1️⃣", "#️⃣", "🧑🏿‍🤝‍🧑🏻", "👁️‍🗨️", "\u200d", "\ufe0f", "🫠",
]  # fmt: skip
MARKED = [
    "e\u0301", "é", "n\u0303o", "Z̴̢̛̲͔a̷l̶g̵o̸", "ǆ ǅ Ǆ", "ﬁﬂ", "ß ẞ İ ı ſ", "हिन्दी में", "தமிழ்", "ภาษาไทย", "ก็", "עִבְרִית",
    "العَرَبِيَّة", "한국어 ᄒ\u1161\u11ab", "日本語と漢字", "龥龦퟿", "Ελληνικά ώ\u1f7d", "Ω\u2126 K\u212a Å\u212b", "ქართული", "ᏣᎳᎩ ꮳ", "𝔘𝔫𝔦 𐐀𐐨 𠀀",
]  # fmt: skip
SHORTENED = [
    "it's",
    "we'll",
    "I'M",
    "don'T",
    "'s",
    " 'LL",
    "they’re",
    "'tis",
    "x'ſ",
    "'RE'Ve",
    "o'clock",
    "''d",
]
SIGNS = [
    "...",
    "!?",
    "—",
    "«»",
    "$+<=>^~|`",
    "#include",
    "// a",
    "/* b */",
    "¿¡",
    "…",
    "、。",
    "（）",
    "--",
    "=>",
    "_",
]
SPECIAL = [
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<|im_", "im_end|>", "<0x0A>", "<0x00>",
    "<|im_end|", "<|eot_id|>", "<|begin_of_text|>", "[INST]", "[/INST]", "<<SYS>>", "<repo_name>", "<|nope|>", "<tool_call>",
]  # fmt: skip
PUBLIC = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) not in ("Cs", "Co")]


def samples(special: list[str] = SPECIAL, seed: int = 0) -> dict[str, list[str]]:
    """5,000 different strings by what they hold."""
    rng = random.Random(seed)

    def several(*kinds: list[str], low: int = 1, high: int = 6, glue: tuple[str, ...] = ("", " ")) -> str:
        parts = [rng.choice(rng.choice(kinds)) for _ in range(rng.randint(low, high))]
        return "".join(part + rng.choice(glue) for part in parts)

    def number() -> str:
        digits = rng.choice(DIGITS[:1] * 3 + DIGITS)
        text = "".join(rng.choice(digits) for _ in range(rng.randint(1, 9)))
        return rng.choice(["{}", "-{}", "{},000.5", "${}", "{}%", "x{}y", "{}th", "v{}.1", "{}"]).format(text)

    words = "the cat Sat on ein Haus été NASA getHTTPResponse snake_case camelCase x1y2 ÄÖÜ Straße".split()
    prose = [
        path.read_text() for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")
    ]
    code = [path.read_text() for path in sorted((ROOT / "specviz").rglob("*.py"))]

    def excerpt(texts: list[str]) -> str:
        text = rng.choice(texts)
        start = rng.randrange(len(text))
        return text[start : start + rng.choice([20, 80, 300])]

    suite = [json.loads(line) for line in (ROOT / "data" / "suites" / "town.jsonl").open()]
    languages = [text for row in suite for text in [*row["turns"], *row["references"]]]
    controls = [chr(i) for i in [*range(32), *range(127, 160)]]
    found = {"languages": languages}
    if QUESTIONS.exists():
        rows = [json.loads(line) for line in QUESTIONS.open()]
        found["questions"] = ["\n".join(row["turns"]) for row in rows]
    makers = {
        "prose": (500, lambda: excerpt(prose)),
        "code": (1000, lambda: excerpt(code)),
        "numbers": (500, lambda: several([number() for _ in range(4)], SPACES[:3], words)),
        "spaces": (400, lambda: several(SPACES, SPACES, SPACES[:1] * 3, words, high=12, glue=("",))),
        "emoji": (300, lambda: several(EMOJI, EMOJI, words)),
        "marks": (400, lambda: several(MARKED, MARKED, words, SIGNS)),
        "short forms": (200, lambda: several(SHORTENED, SHORTENED, words, SIGNS)),
        "special tokens": (400, lambda: several(special, special, words, SPACES, SIGNS)),
        "control characters": (200, lambda: several(controls, words, [number()])),
        "surrogates": (20, lambda: several(words) + chr(rng.randrange(0xD800, 0xE000)) + several(words)),
        "any Unicode": (800, lambda: several(PUBLIC, PUBLIC, words, SPACES, [number()], high=12)),
        "runs": (
            100,
            lambda: rng.choice(["a", "ab", " ", "\n", "é", "=", "1", "🙂", "▁"]) * rng.randint(2, 400),
        ),
    }
    seen: set[str] = set()
    for name, texts in found.items():
        found[name] = [text for text in dict.fromkeys(texts) if not (text in seen or seen.add(text))]
    for name, (number_of, make) in makers.items():
        found[name] = []
        while len(found[name]) < number_of:
            text = make()
            if text and text not in seen:
                seen.add(text)
                found[name].append(text)
    mixed = [text for texts in list(found.values()) for text in texts]
    found["mixed"] = []
    while len(seen) < 5000:
        text = "".join(rng.choice(mixed)[:30] for _ in range(3))
        if text not in seen:
            seen.add(text)
            found["mixed"].append(text)
    return found
