"""The test set of re-translation: English texts that arrive three words at a time.

Every target language has the same sources, so that languages are comparable: only the translations differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specviz.errors import ParameterError
from specviz.measure.retranslation import Sources
from specviz.paths import folder
from specviz.streams import Stream, fixed_lag, from_file
from specviz.suites.frozen import frozen, take

LAG = 3  # words per update: the paper's w
# Languages that the bundled translators write; Control has German words in English order.
TARGETS = {"de": "German", "zh": "Chinese", "ja": "Japanese", "xx": "Control"}
NAMES = TARGETS | {"pt": "Portuguese"}  # of all languages that the tables are measured in


@dataclass(frozen=True)
class Text:
    """An English text and its accepted translations."""

    source: str
    target: str  # a key of `TARGETS`
    references: tuple[str, ...]  # correct translations, all different, best first; at most eight

    @property
    def reference(self) -> str:
        """The best translation."""
        return self.references[0]


def texts(target: str, n: int = 100) -> list[Text]:
    """English texts with their translations; text `i` is the same one for every target language.

    Parameters
    ----------
    target : str
        A key of `TARGETS`: de, zh, ja, or xx, the control language.
    n : int

    Raises
    ------
    ParameterError
        For another language, or if there are fewer texts.
    """
    if target not in TARGETS:
        raise ParameterError(f"no test texts for {target!r}: choose from {', '.join(TARGETS)}")
    entries = [entry for entry in frozen("streams") if entry["to"] == target]
    some = take(entries, n, f"texts for {target}")
    return [Text(entry["source"], target, tuple(entry["references"])) for entry in some]


def streams(some: Sequence[Text], lag: int = LAG) -> list[Stream]:
    """The texts as streams that grow by `lag` words per update, named by target language and number."""
    return [
        fixed_lag(each.source, lag, "en", id=f"{each.target}-{i:02d}", reference=each.reference)
        for i, each in enumerate(some)
    ]


def bundled(target: str, n: int = 100) -> Sources:
    """The first bundled texts of a language as input for `specviz.measure.retranslation`.

    For Portuguese, which a real translator writes, there are thirty sentences without translations.
    """
    if target == "pt":
        return Sources(NAMES[target], from_file(folder("suites") / "sentences.txt", LAG)[:n])
    made = texts(target, n)
    return Sources(TARGETS[target], streams(made), [each.references for each in made])
