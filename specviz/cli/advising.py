"""``specviz advise``: recommend a method, drafter and draft size for this device and these texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from specviz.cli.arguments import listed, on_threads, outputs
from specviz.cli.options import (
    MODEL,
    Device,
    Drafts,
    Dtype,
    Force,
    Invariant,
    Json,
    Kernels,
    Revision,
    Threads,
    argument,
    option,
)
from specviz.cli.terminal import message_kept, progress, screen
from specviz.errors import PromptError, loading


def advise(
    model: Annotated[str, argument(f"{MODEL}.")] = "smollm2",
    draft: Drafts = None,
    prompts: Annotated[
        str | None,
        option("A suite, NAME=FILE, or a file of prompts. Default: town for town, else everyday."),
    ] = None,
    answers: Annotated[
        Path | None,
        option("Use finished texts instead of decoding: JSON lines with a prompt and its answer."),
    ] = None,
    number: Annotated[
        int | None,
        option("How many prompts or answers; default: 24, with --confirm at most half.", min=1),
    ] = None,
    batch: Annotated[str | None, option("More batch sizes to consider, such as 4,8.")] = None,
    context: Annotated[
        str | None, option("More context lengths to consider, in tokens, such as 512,2048.")
    ] = None,
    temperature: Annotated[
        float | None,
        option("Temperature of the texts; 0 is greedy. Default: that of the answers' lines, or 0."),
    ] = None,
    top_k: Annotated[int, option("0 is off.")] = 0,
    top_p: Annotated[float, option("1 is off.")] = 1.0,
    seed: Annotated[int, option("Seed of the random numbers.")] = 0,
    confirm: Annotated[
        bool, option("Run the best three settings on as many other prompts.", "--confirm")
    ] = False,
    confirm_prompts: Annotated[
        str | None,
        option("Run the best three settings on these prompts; takes the same values as --prompts."),
    ] = None,
    stores: Annotated[
        bool,
        option("Also decode with Token Recycling, UniSpec, Lookahead and SPECTRA.", "--stores"),
    ] = False,
    as_device: Annotated[
        str | None,
        option("Model another device: h100, a100, l4, rtx4090, or BYTES,FLOPS,LAUNCH.", "--as"),
    ] = None,
    max_new_tokens: Annotated[
        int, option("Maximum number of tokens per prompt.", "--max-new-tokens", "-n", min=2)
    ] = 128,
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    kernels: Kernels = None,
    invariant: Invariant = None,
    revision: Revision = None,
    html: Annotated[Path | None, option("Write one offline page.")] = None,
    json: Json = None,
    force: Force = False,
) -> None:
    """Advise whether to draft your texts, with what, and how far.

    The target writes its texts once. All settings are then simulated from one more pass over these texts and
    from passes that are timed for about a minute. After Ctrl-C, run the same command again to continue.
    """
    outputs(force, html, json)
    batches, contexts = listed("--batch", batch, int) or (), listed("--context", context, int) or ()
    if answers is not None and not answers.is_file():
        raise PromptError(f"cannot read {answers}: it is not a file")
    from specviz.suites import suite

    for texts in filter(None, (prompts, confirm_prompts)):
        suite(texts)  # refuse a wrong file before the model is loaded
    with loading():
        from specviz.measure.advice.advising import Request
        from specviz.models import load

        request = Request(
            draft, prompts, answers=answers, number=number, batch=batches, context=contexts,
            temperature=temperature, top_k=top_k, top_p=top_p, max_new_tokens=max_new_tokens, seed=seed,
            confirm=confirm_prompts if confirm_prompts is not None else confirm, stores=stores,
            as_device=as_device,
        )  # fmt: skip
        target = load(model, device, dtype, revision=revision, kernels=kernels, invariant=invariant)
    options = ["--device", device] * (device != "cpu") + ["--dtype", dtype] * (dtype != "auto")
    options += ["--kernels", str(kernels)] * (kernels is not None)
    options += ["--invariant" if invariant else "--no-invariant"] * (invariant is not None)
    options += ["--threads", str(threads)] * (threads is not None)
    with on_threads(threads), message_kept(), progress() as tick:
        advice = request.advise(target, model, revision=revision, options=options, tick=tick)
    advice.show(screen())
    if html is not None:
        print(f"page: {advice.to_html(html, force=force)}")
    if json is not None:
        advice.write(json, force)
