"""Re-translation of a growing source: from scratch, by SSBD, or by continuing the previous output.

Zeng, Deng, Shu and Wang, "Self-Speculative Biased Decoding for Faster Re-translation": section 3.2 and
Algorithm 1 (SSBD), equation 3 (the bias), section 3.4 (display-only mask-k), section 4.2 (continuous
decoding). The previous update's output is the draft of this one. Lossy if the bias is above 0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..draft import Draft
from ..errors import ModelError, ParameterError
from ..models.devices import send
from ..models.protocols import Model
from ..rules import retranslation as rules
from ..rules.parameters import Value
from ..rules.retranslation import RETRANSLATE, biased
from ..rules.speculative import chain_status, next_origin
from .base import Method, Parameter, Session, Verdict
from .sampling import ACCEPT, FINAL, Sampling, draw, exact_type
from .signals import likeliest_tokens
from .tree import bring

RULE = (
    "Translate the {source_language} source text to {target_language}. Return only the translation, "
    "without any additional explanations or commentary."
)
# Table 5, and the prompt of the bundled translators. The text after the source is recomputed at each update;
# the text before it, and the source's unchanged words, stay in the cache.
TEMPLATES = {
    "plain": "{source}",
    "task": "Translate into {target_language}: {source}",
    "town": "<s><|user|>Translate into {target_language}: {source}<|end|><|assistant|>",
    "tower": (
        f"<start_of_turn>user\n{RULE}\n"
        "{source_language}: {source}\n{target_language}: <end_of_turn>\n<start_of_turn>model\n"
    ),
    "qwen3": (
        f"<|im_start|>system\n{RULE}<|im_end|>\n<|im_start|>user\n"
        "{source_language}: {source}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n{target_language}:"
    ),
}


class Retranslate(Method):
    """The translation is written again at each update; SSBD keeps what the model still agrees with."""

    name = "retranslate"
    title = "Re-translation"
    paper = "Zeng et al. 2025"
    streams = True
    parameters = (
        *RETRANSLATE,
        Parameter(
            "second_pass", False,
            meaning="Whether the token after the kept ones takes its own pass, as in Algorithm 1 (lines 13 "
                "to 15); the verification pass already contains the same prediction.",
        ),
        Parameter(
            "template", "town",
            meaning="The prompt: town, tower or qwen3 (Table 5), task, plain (the source alone), or a text "
                "that contains {source}. By default T5 and mT5 use task, other encoder-decoders plain.",
        ),
        Parameter("source_language", "English", meaning="The source's language, as named in the template."),
        Parameter("target_language", "German", meaning="The output's language, as named in the template."),
    )  # fmt: skip
    pseudocode = (
        ("", "at each update of the source X:"),
        ("", "    D = the output of the update before, without its end"),
        ("forward", "    p_0 .. p_m = target(X + D)             # one pass; X's shared part is cached"),
        ("verify", "    for i = 0 .. m−1, until one fails:"),
        ("verify:accepted", "        keep y_i if it is the argmax of (1−β) p_i + β δ(y_i)"),
        ("verify:rejected", "        else stop: y_i and everything after it is dropped"),
        ("commit:correction", "    where it stopped: the argmax of p_d, without the bias"),
        ("commit:bonus", "    if all was kept: the argmax of p_m"),
        ("commit:unreviewed", "    (continuous decoding keeps all of D without a pass)"),
        ("commit:plain", "    then token by token, to the end"),
    )
    exact = {"beta": 0.0}  # noqa: RUF012
    set_by_model = ("template",)
    mode: str
    beta: float
    k: int
    mask: str
    second_pass: bool
    template: str
    source_language: str
    target_language: str

    def __init__(self, **values: Value) -> None:
        super().__init__(**values)
        if self.template not in TEMPLATES and self.template.count("{source}") != 1:
            raise ParameterError(
                f"template must be one of {', '.join(TEMPLATES)}, or a text with {{source}} in it once, "
                f"where the source goes, such as 'Translate: {{source}}'; got {self.template[:60]!r}"
            )
        for slot in ("source_language", "target_language"):
            if not getattr(self, slot).strip():
                raise ParameterError(f"{slot} is empty: name a language as the model's prompt does")

    def prepare(self, target: Model) -> None:
        if target.kind not in ("causal", "encoder-decoder"):
            raise ModelError(
                f"{self.name} needs a model that writes from left to right, but {target.name} is a "
                f"{target.kind} model"
            )
        if "template" not in self.chosen:
            self.template = getattr(target, "template", "town")  # encoder-decoders name their own

    def wording(self) -> tuple[str, str]:
        """The prompt before and after the source, with the languages filled in."""
        before, _, after = TEMPLATES.get(self.template, self.template).partition("{source}")
        for slot in ("source_language", "target_language"):
            before, after = (side.replace(f"{{{slot}}}", getattr(self, slot)) for side in (before, after))
        return before, after

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return rules.exactness(self.mode, self.beta, sampling.greedy)

    def shown(self, tokens: int, last: bool) -> int:
        """All but the last `k` tokens; all of them once the source is complete."""
        return rules.displayed(tokens, self.k, last)

    def carried(self, previous: list[int], left: int) -> list[int]:
        """Tokens of the previous output that are kept without another pass; at most `left`."""
        return self._draft(previous)[:left] if self.mode == "cd" else []  # the same tokens as in `draft`

    def start(self, session: Session) -> None:
        self.session = session
        self.proposed = False
        self.refused: int | None = None  # the rejected token, which the second pass must not draw
        self.origin = "plain"  # of the next token without a draft: the second pass writes the draft's

    def draft(self, left: int) -> Draft:
        """Algorithm 1, line 1: draft the previous output once; then go token by token (lines 14 to 17)."""
        if self.proposed or self.mode == "rt":
            return Draft.empty()
        self.proposed = True
        # An output of maximum length is drafted whole: the pass then judges its last token and adds none.
        tokens = self._draft(self.session.previous)
        if not tokens:
            return Draft.empty()
        return Draft.chain(
            send(tokens[:left], torch.device(self.session.target.device), torch.long),
            read=self.mode != "cd",
            source="previous",
            stop="text" if len(tokens) <= left else "room",
        )

    def _draft(self, previous: list[int]) -> list[int]:
        return rules.drafted(previous, self.k, self.mask, self.session.eos) if previous else []

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        """Algorithm 1, lines 4 to 12, and the token at the divergence."""
        n = len(draft)
        if scores is None:
            return Verdict(list(range(n)), draft.tokens.tolist(), None, "", ["unreviewed"] * n)
        origin, self.origin = self.origin, "plain"
        if n == 0 and self.session.sampling.greedy:
            return Verdict([], [], int(scores[0].argmax()), origin, [])
        drafted = send(draft.tokens, scores.device)
        last = None
        u = np.empty(0)
        if self.session.sampling.greedy:
            kept = keeps(scores[:n], drafted, self.beta).long().cumprod(0).sum()
            token, p = scores[kept.view(1)][0].argmax(), None
        else:
            u, last = self.session.uniforms(ACCEPT, n), float(self.session.uniforms(FINAL, 1)[0])
            p = self.session.sampling.probabilities(scores)
            own_p = p[:n].gather(1, drafted[:, None])[:, 0]
            node_p = biased(own_p, self.beta)
            kept = (send(u, p.device, exact_type(p.device)) < node_p).long().cumprod(0).sum()
            rest = p[kept.view(1)][0]
            if n:  # after a rejection the rejected token cannot be drawn; after the last token any can
                refused = drafted[kept.clamp(max=n - 1).view(1)]
                without = rest.index_fill(0, refused, 0.0)
                rest = torch.where(kept < n, without, rest)
            elif self.refused is not None:
                rest = rest.index_fill(0, send([self.refused], p.device), 0.0)
                self.refused = None
            token = draw(rest, last)
        chosen = torch.cat([kept[None], token[None], drafted])
        brought, *own = bring(chosen, *(() if p is None else (own_p,)))  # the synchronisation
        k, t, *tokens = brought.tolist()
        if n:
            origin = next_origin(n, k < n, "correction" if p is None else "resampled")
        verdict = Verdict(list(range(k)), tokens, t, origin, chain_status(n, k))
        if p is not None:
            verdict.u = np.where(np.arange(n) <= k, u, np.nan)
            verdict.token_u, verdict.p, verdict.token_p = last, node_p, p[k, t]
            (verdict.own_p,) = own
        if self.second_pass and n:
            verdict.token, self.refused, self.origin = None, tokens[k] if k < n else None, origin
        return verdict


def keeps(scores: Tensor, tokens: Tensor, beta: float) -> Tensor:
    """Algorithm 1, lines 6 and 7: is each draft token the argmax of the biased distribution? bool [n].

    With equation 3 that is (1 - β) max p ≤ (1 - β) p(y) + β: for β < 1, max p - p(y) ≤ β / (1 - β). The
    argmax of p passes for every β, so β = 0 compares argmaxes and nothing is rounded.

    Parameters
    ----------
    scores : tensor [n, vocabulary]
        The target's logits at the place of each draft token.
    tokens : tensor [n]
    beta : float
    """
    best = likeliest_tokens(scores)
    if beta == 0:
        return best == tokens
    p = scores.softmax(-1)
    most, own = (p.gather(1, which[:, None])[:, 0] for which in (best, tokens))
    return (best == tokens) | rules.keeps(most, own, beta)
