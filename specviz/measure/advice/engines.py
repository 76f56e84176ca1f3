"""A setting as options of other engines, named as in each engine's documentation on the date below.

An engine's drafter may differ from ours in detail, as its note says; its acceptance then differs, too.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from specviz.files import parsed
from specviz.models.loading import find
from specviz.models.zoo import bundled

from .simulation import BASELINE, CHAIN, LOOKUP, TREE, Candidate

OWN = "the bundled drafter is stored in a form that only this package reads"
READ = "2026-11-25"
SOURCES = {
    "vLLM": "docs/features/speculative_decoding, main branch (v0.26); draft models since 0.10.1",
    "SGLang": "docs/advanced_features/speculative_decoding.md, main branch (067ad4d, and a later one for the "
    "depth of n-gram tries)",
    "llama.cpp": "llama-server's options, b9235, and examples/speculative-simple/README.md (7fe450e); older "
    "builds say --draft-max, --spec-ngram-size-n; EAGLE-3 in docs/speculative.md and pull request 18039",
    "transformers": "GenerationConfig and the guide on assisted decoding, 5.23",
    "mlx-lm": "mlx_lm.generate's options, main branch (0024613)",
}


@dataclass(frozen=True)
class Flags:
    """One engine's options for a setting.

    Parameters
    ----------
    engine : str
    flags : str
        Empty if the engine has no equivalent.
    note : str
        How its drafter differs, or why there are no flags.
    """

    engine: str
    flags: str
    note: str

    @property
    def source(self) -> str:
        """The documentation that the names come from, and when it was read."""
        return f"{SOURCES[self.engine]}; read {READ}"


def flags_of(
    candidate: Candidate, draft: str = "DRAFT", fixed: tuple[Candidate, float] | None = None,
    generation: int = 3,
) -> list[Flags]:  # fmt: skip
    """A setting's flags for every engine.

    Parameters
    ----------
    candidate : Candidate
    draft : str
        Name or path under which the engine finds the draft model.
    fixed : (Candidate, float), optional
        The same drafter's fastest chain without a threshold, and its speedup, for engines that draft no
        other kind.
    generation : int
        Generation of an EAGLE head: 1 (EAGLE-2 uses the same weights) or 3.
    """
    values = dict(candidate.values)
    if candidate.method == BASELINE:
        return [Flags(engine, "", "decodes without drafts by default: set nothing") for engine in SOURCES]
    if candidate.method == LOOKUP:
        return _lookup(int(values["draft_length"]), int(values["ngram_max"]), int(values["ngram_min"]))
    if candidate.method == CHAIN:
        return _chain(int(values["draft_length"]), float(values.get("stop", 0.0)), draft, fixed)
    if candidate.method == TREE:
        size, depth, branches = (int(values[name]) for name in ("draft_size", "depth", "branches"))
        return _tree(size, depth, branches, draft, generation, fixed)
    why = f"does not support the kind of drafter that {candidate.method} uses here"
    return [Flags(engine, "", why) for engine in SOURCES]


def _lookup(length: int, longest: int, shortest: int) -> list[Flags]:
    # SGLang counts the last verified token, the root of the draft, as a draft token.
    config = {
        "method": "ngram", "num_speculative_tokens": length,
        "prompt_lookup_max": longest, "prompt_lookup_min": shortest,
    }  # fmt: skip
    return [
        Flags("vLLM", f"--speculative-config {shlex.quote(json.dumps(config))}", ""),
        Flags(
            "SGLang",
            f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {length + 1} "
            f"--speculative-ngram-max-trie-depth {longest + length} --speculative-ngram-max-bfs-breadth 1",
            "CUDA only; it drafts from a cache of generated tokens, which other requests also fill; older "
            f"versions take --speculative-ngram-min-match-window-size {shortest} "
            f"--speculative-ngram-max-match-window-size {longest} instead of the depth",
        ),
        Flags(
            "llama.cpp",
            f"--spec-type ngram-simple --spec-ngram-simple-size-n {longest} "
            f"--spec-ngram-simple-size-m {length}",
            "it copies after the latest match, this package after the first"
            + f"; it matches only runs of {longest} tokens, none shorter" * (longest != shortest),
        ),
        Flags(
            "transformers",
            f"model.generate(..., prompt_lookup_num_tokens={length}, max_matching_ngram_size={longest})",
            "" if shortest == 1 else "it also matches single tokens",
        ),
        Flags("mlx-lm", "", "it has no prompt lookup"),
    ]


def _chain(length: int, stop: float, draft: str, fixed: tuple[Candidate, float] | None) -> list[Flags]:
    whole, no_stop = length, f"it has no threshold like stop={stop:g}" if stop else ""
    if stop and fixed is not None:
        whole = int(dict(fixed[0].values)["draft_length"])
        no_stop += f": the best length without one, predicted {fixed[1]:.2f} times the plain speed"
    own = ""
    folder = find(draft) if draft in bundled() else None
    if folder is not None:
        standard = parsed((folder / "config.json").read_text("utf8"), draft).get("architectures")
        draft, own = (str(folder), "") if standard else (draft, OWN)
    no_stop = "; ".join(filter(None, (own, no_stop)))
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": whole}
    name = shlex.quote(draft)
    return [
        Flags("vLLM", f"--speculative-config {shlex.quote(json.dumps(config))}", no_stop),
        Flags(
            "SGLang",
            f"--speculative-algorithm STANDALONE --speculative-draft-model-path {name} "
            f"--speculative-num-steps {whole} --speculative-eagle-topk 1 "
            f"--speculative-num-draft-tokens {whole + 1}",
            no_stop,
        ),
        Flags(
            "llama.cpp",
            f"--spec-type draft-simple --spec-draft-model {name} --spec-draft-n-max {length} "
            f"--spec-draft-p-min {stop:g}",
            "; ".join(filter(None, (own, "both models as GGUF files"))),
        ),
        Flags(
            "transformers",
            "model.generate(..., assistant_model=draft) with draft.generation_config.num_assistant_tokens="
            f'{length}, .num_assistant_tokens_schedule="constant", .assistant_confidence_threshold={stop:g}',
            "; ".join(filter(None, (own, "one prompt at a time"))),
        ),
        Flags("mlx-lm", f"mlx_lm.generate --draft-model {name} --num-draft-tokens {whole}", no_stop),
    ]


def _tree(
    size: int, depth: int, branches: int, draft: str, generation: int, fixed: tuple[Candidate, float] | None
) -> list[Flags]:
    own = OWN * (draft in bundled())
    chain, length = "it drafts chains, without branches" if branches > 1 else "", depth
    if branches > 1 and fixed is not None:
        length = int(dict(fixed[0].values)["depth"])
        chain += f": this is the fastest chain, predicted {fixed[1]:.2f} times the plain speed"
    note, name = "; ".join(filter(None, (own, chain))), shlex.quote(draft)
    config = {
        "method": "eagle3" if generation == 3 else "eagle",
        "model": draft,
        "num_speculative_tokens": length,
    }
    ggml = f"--spec-type draft-eagle3 --spec-draft-model {name} --spec-draft-n-max {length}"
    return [
        Flags(
            "vLLM", f"--speculative-config {shlex.quote(json.dumps(config))}",
            note,
        ),
        # SGLang counts the last verified token, the root of the draft, as a draft token.
        Flags(
            "SGLang",
            f"--speculative-algorithm {'EAGLE3' if generation == 3 else 'EAGLE'} "
            f"--speculative-draft-model-path {name} --speculative-num-steps {depth} "
            f"--speculative-eagle-topk {branches} --speculative-num-draft-tokens {size + 1}",
            own,
        ),
        Flags("llama.cpp", ggml, "; ".join(filter(None, (note, "both models as GGUF files"))))
        if generation == 3
        else Flags("llama.cpp", "", "it supports only EAGLE-3 heads"),
        *(Flags(each, "", "its documentation names no EAGLE heads") for each in ("transformers", "mlx-lm")),
    ]  # fmt: skip
