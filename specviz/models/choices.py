"""Default number format of a large model on a CPU, and whether it is made invariant by default.

Both are measured once per machine and kept in a file. A model whose matrices fit into a cache stays in
float32: reading weights does not dominate its passes, and its texts should be the same on every machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models import gemma2, kernels, ordered
from specviz.models.devices import has_bfloat16, to_format
from specviz.models.layers import Lines, PlainFunction
from specviz.models.llama import describes, groups

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.model import Model
    from specviz.models.protocols import Net
    from specviz.models.torch_model import TorchModel

COST = 1.10  # time ratio, invariant pass to ordinary pass, up to which a model is invariant by default
FLOAT32, BFLOAT16, HALVES = "float32", "bfloat16", "float16 weights"  # formats of a large model
NODES = (0, 8)  # draft sizes with which the cost is measured: passes of one row and of nine
LENGTH = 128  # tokens before the draft
ROUNDS = 9  # timed rounds, after one warm-up round


class Way(kernels.Measured):
    """How a model's passes are made invariant on a machine.

    Attributes
    ----------
    fault : str
        Why they cannot be made invariant; empty if they can.
    layout : str
        Layout of the matrices.
    sums : ordered.Sums
        How attention computes its sums.
    cuts : tuple of ordered.Cut
        How each of `PlainFunction.lines` is computed.
    """

    fault: str
    layout: str = ""
    sums: ordered.Sums = ordered.SUMS[0]
    cuts: tuple[ordered.Cut, ...] = ()

    def laid(self, model: TorchModel) -> PlainFunction:
        """Build a model's plain function that computes in this way."""
        function = model.function(self.layout, invariant=True)
        function.sums = self.sums
        for line, cut in zip(function.lines(), self.cuts):
            line.divide(cut)
        return function


class Format(kernels.Measured):
    """Measured pass times by number format.

    Attributes
    ----------
    milliseconds : dict of float
        Sum of the least times of passes over `kernels.ROWS` tokens, in the fastest layout.
    invariant : dict of bool
        Whether passes in the format can be invariant; always True for float32, which is not tested.
    """

    milliseconds: dict[str, float]
    invariant: dict[str, bool]


class Cost(kernels.Measured):
    """Time ratio of an invariant pass to an ordinary one; None if it cannot be invariant, with the reason."""

    cost: float | None = None
    fault: str = ""


def way(model: TorchModel, others: Sequence[str]) -> Way:
    """Determine how a model's passes are made invariant, in its own layout or one of the others.

    For a large model this is tested once per machine and kept in a file.
    """

    def tried() -> tuple[Way, bool]:
        return _tried(model, others), True

    if not large(model.net):
        return tried()[0]
    function = model.function(model.kernels, invariant=True)
    where: kernels.Place = {"choice": "way", "layers": model.layers, "threads": torch.get_num_threads()}
    where |= {"check": ordered.CHECK, "layouts": [model.kernels, *others], **kernels.about(model.net)}
    where |= {"head": function.dim, "cap": str(function.cap), "biased": function.bias is not None}
    where |= {"attention": str(torch.promote_types(model.dtype, torch.float32))}  # as in `_tried`
    return kernels.remembered(Way, where, tried)


def _tried(model: TorchModel, others: Sequence[str]) -> Way:
    faults, dtype = [], torch.promote_types(model.dtype, torch.float32)  # that of an invariant attention
    for layout in dict.fromkeys((model.kernels, *others)):
        function = model.function(layout, invariant=True)
        threads, biased = torch.get_num_threads(), function.bias is not None
        if not (sums := ordered.fixed_order(function.dim, threads, biased, function.cap, dtype)):
            return Way(
                fault="torch's products over a head's width change their summation order with the size of a "
                "pass here"
            )
        lines = list(function.lines())
        if not (fault := ordered.settle(lines)):
            cuts = tuple(line.cut for line in lines)
            return Way(fault="", layout=layout, sums=sums, cuts=cuts)
        faults.append(f"with {layout} kernels {fault}")
    return Way(fault=", ".join(faults))


def convert(net: Net, layout_name: str | None = None, auto: bool = True) -> Net:
    """Convert a network to the fastest format in which it can be invariant.

    The candidates are bfloat16 if the processor computes in it, float32 with weights rounded to float16 if
    torch multiplies by such weights (`specviz.models.kernels.FP16`), and unchanged float32. Without a request
    for ``fp16``, only large models of the Llama family and Gemma 2 are converted.

    Parameters
    ----------
    layout_name : str, optional
        The requested kernels. If they are given, weights are rounded only for ``fp16``.
    auto : bool
        Whether the format may be chosen. Otherwise weights are rounded only if ``fp16`` was requested.

    Raises
    ------
    ModelError
        If ``fp16`` was requested and a weight is too large for it.
    """
    pinned = kernels.check(layout_name) or kernels.check(os.environ.get(kernels.VARIABLE), kernels.VARIABLE)
    plain = describes(net) or gemma2.describes(net)
    laid = plain or net.config.is_encoder_decoder  # others run through transformers' modules
    if pinned == kernels.FP16 and laid and kernels.takes_halves(net):
        kernels.round_to_halves(net)
        return net
    if not auto or not plain or not large(net):
        return net
    taken = _format(net, (FLOAT32, BFLOAT16) if pinned else (FLOAT32, BFLOAT16, HALVES))
    if taken == BFLOAT16:
        to_format(net, torch.bfloat16)
    elif taken == HALVES:
        kernels.round_to_halves(net)
    return net


def _format(net: PreTrainedModel, allowed: Sequence[str]) -> str:
    """The fastest allowed format that can be invariant; all available formats are measured once.

    Instead of rounded weights in float32, bfloat16 is taken if its ordinary passes cost at most `COST`: a
    model in it is always made invariant.
    """
    formats = [FLOAT32] + [BFLOAT16] * has_bfloat16(net.device)
    if kernels.takes_halves(net) and kernels.fits(net) and kernels.in_reach(net):
        formats.append(HALVES)
    if len(formats) == 1:
        return FLOAT32
    # Twice the sample, so that it exceeds the cache in 16-bit formats, too.
    sample = kernels.sample(([part.weight for part in group] for group in groups(net)), 2 * kernels.SAMPLE)

    def measured() -> tuple[Format, bool]:
        least, calm, settled = {}, True, {}
        for form in formats:
            matrices = [[rounded(weight, form) for weight in group] for group in sample]
            layouts = _layouts(net, form)
            times = kernels.measure(matrices, layouts)
            least[form] = min(sum(min(each) for each in by.values()) for by in times.values())
            calm = calm and kernels.calm(times)
            settled[form] = form == FLOAT32 or _settles(net, form, layouts)
        return Format(milliseconds=least, invariant=settled), calm

    threads, (dim, cap) = torch.get_num_threads(), _attention(net)
    where = {"choice": "format", "check": ordered.CHECK, "formats": formats, **kernels.about(net)}
    where |= {"threads": threads, "head": dim, "cap": str(cap)}
    kept = kernels.remembered(Format, where, measured)
    able = [form for form in formats if form in allowed and kept.invariant[form]]
    fastest = min(able, key=kept.milliseconds.__getitem__)
    close = BFLOAT16 in able and kept.milliseconds[BFLOAT16] <= COST * kept.milliseconds[fastest]
    return BFLOAT16 if fastest == HALVES and close else fastest


def rounded(weight: torch.Tensor, form: str) -> torch.Tensor:
    """Convert a matrix to a format; for `HALVES`, round it to float16 and keep it in float32."""
    if form == HALVES:
        return weight.half().float()
    return weight.to(torch.bfloat16) if form == BFLOAT16 else weight


def _layouts(net: PreTrainedModel, form: str) -> tuple[str, ...]:
    """The kernels with which a format is measured."""
    if form == HALVES:
        return (kernels.FP16,)
    return kernels.candidates(net.device, torch.bfloat16 if form == BFLOAT16 else torch.float32)


def unasked(model: Model, chosen: bool, variable: str | None) -> bool:
    """Whether to make a model invariant when the caller did not specify it.

    Parameters
    ----------
    chosen : bool
        Whether its number format was chosen automatically.
    variable : str or None
        Value of the environment variable SPECVIZ_INVARIANT.
    """
    if variable:
        if variable not in ("0", "1"):
            raise ModelError(f"SPECVIZ_INVARIANT is 0 or 1; got {variable!r}")
        return variable == "1"
    if model.kind != "causal" or model.plain_function is None or not large(model.net):
        return False
    return (chosen and model.dtype == torch.bfloat16) or _cheap(model)


def _cheap(model: Model) -> bool:
    """Whether a model's passes can be invariant here at a time ratio of at most `COST`."""
    function = model.plain_function
    assert function is not None  # see `unasked`
    where: kernels.Place = {"choice": "invariant", "check": ordered.CHECK, **kernels.about(model.net)}
    where |= {"head": function.dim, "cap": str(function.cap)}
    # Another layout may be taken for an invariant model if none was requested.
    where |= {"layout": model.kernels, "requested": model.requested_kernels is not None}

    def measured() -> tuple[Cost, bool]:
        twin = type(model)(model.net, model.tokenizer, model.name, kernels=model.requested_kernels)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # so that the choice, and thus the text, does not depend on the thread count
        try:
            twin.make_invariant()
        except ModelError as error:
            return Cost(fault=str(error)), True
        else:
            times = [_times(model, twin, nodes) for nodes in NODES]
            cost = max(min(slow) / min(fast) for fast, slow in times)
            calm = all(np.median(each) <= kernels.CALM * min(each) for both in times for each in both)
            return Cost(cost=cost), bool(calm)
        finally:
            torch.set_num_threads(threads)

    cost = kernels.remembered(Cost, where, measured).cost
    return cost is not None and cost <= COST


def _times(model: Model, twin: Model, nodes: int) -> tuple[list[float], list[float]]:
    """Seconds per pass of both models over the same text and draft, measured alternately."""
    ids = np.random.default_rng(0).integers(0, model.vocabulary, LENGTH + nodes).tolist()
    draft = Draft.chain(ids[LENGTH:]) if nodes else Draft.empty()
    contexts = []
    for each in (model, twin):
        contexts.append(each.open([ids[:LENGTH]], nodes + 1))
        contexts[-1].prefill()
    spent: tuple[list[float], list[float]] = ([], [])
    for turn in range(1 + ROUNDS):
        for times, context in zip(spent, contexts):
            begin = time.perf_counter()
            context.forward(draft)
            if turn:
                times.append(time.perf_counter() - begin)
            context.rewind(LENGTH)
    return spent


def of_drafter(target: TorchModel) -> str:
    """Layout of the matrices of a drafter bound to a target.

    Drafting mostly reads weights, and rounding them does not change the text of an exact method. On a CPU
    that multiplies 8-bit integers, the drafter of a large model therefore has 8-bit weights and inputs,
    whatever the target's layout. The environment variable SPECVIZ_KERNELS applies to both.
    """
    pinned = kernels.check(os.environ.get(kernels.VARIABLE), kernels.VARIABLE)
    several = len(kernels.candidates(target.device, target.dtype)) > 1  # False for float64, the reference
    if pinned or not (several and large(target.net) and kernels.multiplies_eight_bits()):
        return target.kernels
    return kernels.W8A8


def large(net: torch.nn.Module) -> bool:
    """Whether a model's parameters on the CPU are too large for a cache."""
    on_cpu = [p for p in net.parameters() if p.device.type == "cpu"]
    return sum(p.numel() * p.element_size() for p in on_cpu) > kernels.SAMPLE


def _attention(net: PreTrainedModel) -> tuple[int, float | None]:
    """The width of a head, and the soft cap of attention's scores."""
    return net.model.layers[0].self_attn.head_dim, getattr(net.config, "attn_logit_softcapping", None)


def _settles(net: PreTrainedModel, form: str, layouts: Sequence[str]) -> bool:
    """Whether attention, one layer's products and the head can keep their summation order in a format."""
    dim, cap = _attention(net)
    if not ordered.fixed_order(dim, torch.get_num_threads(), False, cap):
        return False
    some = [*islice(groups(net), 4), (net.lm_head,)]

    def converted(part: torch.nn.Linear) -> torch.nn.Linear:
        copy = torch.nn.Linear(1, 1, bias=False, device="meta")
        copy.weight = torch.nn.Parameter(rounded(part.weight.detach(), form), requires_grad=False)
        return copy

    copies = [[converted(part) for part in group] for group in some]
    return any(
        not ordered.settle(Lines(*group, layout=layout, invariant=True) for group in copies)
        for layout in layouts
    )
