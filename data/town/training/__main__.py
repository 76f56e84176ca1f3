"""``python -m town.training NAME``: make a bundled model, or resume an interrupted run."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from specviz.arguments import check_threads
from specviz.errors import ModelError, SpecvizError
from town.training import recipes, shards, tokenizer

ROOT = Path(__file__).parents[2] / "models"
CACHE = Path("build") / "training"
TOKENIZER_CHATS = 16_000
DEV_CHATS = 100
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def prepare_tokenizer(folder: Path, models: Path, pairs: bool = False) -> None:
    """Copy the tokenizer of `models`/town, or train one if there is none yet.

    With `pairs`, it is written as an encoder-decoder's.
    """
    source = models / "town"
    if not all((source / n).exists() for n in TOKENIZER):
        tokenizer.save(tokenizer.train(tokenizer.texts(TOKENIZER_CHATS)), source)
    if pairs:
        from tokenizers import Tokenizer

        tokenizer.save(Tokenizer.from_file(str(source / TOKENIZER[0])), folder, pairs=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER:
        if folder.resolve() != source.resolve():
            shutil.copyfile(source / name, folder / name)


def save_model(recipe: recipes.Recipe, model: Any, folder: Path) -> None:
    """Write the weights in 16 bit next to the tokenizer; float16 keeps three more bits than bfloat16."""
    import torch

    from town.training import diffusion

    generation = (folder / "generation_config.json").read_text(encoding="utf-8")
    if recipe.part == "diffusion":
        diffusion.save(model, folder)
    else:
        model.to(torch.float16).save_pretrained(folder)
    (folder / "generation_config.json").write_text(generation, encoding="utf-8")


def save_part(recipe: recipes.Recipe, model: Any, folder: Path) -> None:
    """Write blockwise heads, a parallel drafter or an EAGLE drafter in 16 bit, and the name of its target."""
    from safetensors.torch import save_file

    from specviz.finetune import eagle_loss
    from specviz.models import heads, slots

    tensors = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if recipe.part == "heads":
        config = {"model_type": heads.TYPE, "target": recipe.target, "heads": recipe.ahead,
                  "width": recipe.width, "inner": recipe.feed_forward}  # fmt: skip
    elif recipe.part == "eagle":
        config = eagle_loss.config(model, {"target": recipe.target}, recipe.states)
    else:
        config = {"model_type": slots.TYPE, "target": recipe.target, "slots": recipe.ahead,
                  "layers": recipe.layers, "width": recipe.width, "heads": recipe.heads,
                  "feed_forward": recipe.feed_forward}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in TOKENIZER:
        (folder / name).unlink()


def make(
    recipe: recipes.Recipe, out: Path, *, models: Path = ROOT, cache: Path = CACHE,
    minutes: float | None = None, threads: int = 2, workers: int = 0, device: str = "cpu",
) -> None:  # fmt: skip
    """Train a model into folder `out`, on shards made by `workers` processes (0: made here, as needed).

    Raises
    ------
    ModelError
        If the model that it starts from or learns from is missing, or the device is.
    """
    import torch
    from tokenizers import Tokenizer

    from specviz.finetune import eagle_loss
    from town.training import answers, diffusion, eagle, encoder_decoders, train

    name = recipe.name
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise ModelError(f"device {device} is not there; use --device cpu")
    torch.set_num_threads(check_threads(threads))
    pairs = recipe.texts == "pairs"
    prepare_tokenizer(out, models, pairs)
    pieces = Tokenizer.from_file(str(out / "tokenizer.json"))
    longest = recipe.context // 2
    model = answers.load(models / recipe.start) if recipe.start else recipes.build(recipe)
    if recipe.part == "diffusion" and recipe.start:
        model = diffusion.build(recipe, model)
    on_states = recipe.part == "eagle"
    target = None
    if recipe.target and (pairs or on_states):
        target = answers.load(models / recipe.target).to(device)
    texts = islice(shards.turns(recipe.texts, recipe.seed, "dev"), DEV_CHATS * (1 + pairs))
    if target and pairs:
        dev = answers.answered_pairs(target, pieces, [turns[0][0] for turns in texts])
    else:
        dev = shards.pack(pieces, texts, longest, recipe.texts)
    if recipe.part == "slots":
        encoder_decoders.begin(model, target)
    if on_states:
        read = [dev.chat(i)[0] for i in range(len(dev))] if recipe.states else []
        eagle_loss.begin(model, target, eagle_loss.sizes(target, read, recipe.states) if read else ())
    loss: train.Loss = diffusion.masked_loss if recipe.part == "diffusion" else train.loss_sums
    if pairs:
        loss = {"whole": lambda: encoder_decoders.WholeLoss(recipe.exits),
                "heads": lambda: encoder_decoders.HeadsLoss(target),
                "slots": lambda: encoder_decoders.SlotsLoss(target)}[recipe.part]()  # fmt: skip

    if on_states:
        loss = eagle.ReadingLoss(target, recipe.states, recipe.ahead)

    def shard(number: int) -> shards.Shard:
        if recipe.target and not on_states:
            at = models / recipe.target, pieces, recipe.seed, number % recipe.answers
            if pairs:
                return answers.answered_pairs_shard(cache, *at, device=device)
            return answers.answered_shard(cache, *at, longest, device=device)
        if ahead:
            return ahead(number)
        return shards.corpus_shard(cache, pieces, recipe.seed, number, longest, texts=recipe.texts)

    ahead = None
    if workers and (on_states or not recipe.target):
        ahead = shards.Ahead(cache, out / "tokenizer.json", recipe.seed, longest, workers, texts=recipe.texts)
    checkpoint = cache / name / "checkpoint.safetensors"
    try:
        state = train.train(
            recipe, model, shard, dev, checkpoint, minutes=minutes, device=device, loss_sums=loss
        )
    finally:
        if ahead:
            ahead.close()
    if recipe.part in ("whole", "diffusion"):
        save_model(recipe, model, out)
    else:
        save_part(recipe, model, out)
    state.pop("place")
    cpu = f"{threads} CPU thread{'s' * (threads > 1)}"
    state["where"] = torch.cuda.get_device_name(device) if on_gpu else cpu if device == "cpu" else device
    (out / "training.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    from town.training import evaluate

    evaluate.write_card(name, out, models, device=device)
    checkpoint.unlink()
    print(out)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m town.training", description=__doc__)
    parser.add_argument("name", help=", ".join(recipes.RECIPES))
    parser.add_argument("--out", type=Path, help="folder of the model (default: data/models/NAME)")
    parser.add_argument("--minutes", type=float, help="spread the schedule over this time, not over tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--workers", type=int, default=0, help="processes that make shards ahead")
    parser.add_argument("--tokens", type=float, help="tokens to read, in place of the recipe's")
    parser.add_argument("--step", type=int, help="tokens of an update, one pass, in place of the recipe's")
    parser.add_argument("--rate", type=float, help="peak learning rate, in place of the recipe's")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of shards and checkpoints")
    given = parser.parse_args(arguments)
    try:
        recipe = recipes.changed(recipes.recipe(given.name), given.tokens, given.step, given.rate)
        make(recipe, given.out or ROOT / given.name, cache=given.cache, minutes=given.minutes,
             threads=given.threads, workers=given.workers, device=given.device)  # fmt: skip
    except SpecvizError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
