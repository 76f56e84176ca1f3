"""Score a replay's texts with COMET, in an environment that has unbabel-comet; specviz is not needed.

    python score.py REPLAY/comet.jsonl scores.jsonl [MODEL]

MODEL is an id on the Hugging Face hub (default: Unbabel/wmt22-comet-da, the paper's) or a checkpoint (.ckpt).
Identical texts are scored once. Afterwards run specviz replay TABLE ... --score comet=scores.jsonl
"""

import json
import sys
from pathlib import Path

MODEL = "Unbabel/wmt22-comet-da"


def unique(lines):
    """Deduplicate the texts by their id."""
    return {line["id"]: line for line in lines}


def score(texts, model):
    """Score each text with COMET, downloading the model if necessary."""
    from comet import download_model, load_from_checkpoint

    scorer = load_from_checkpoint(model if model.endswith(".ckpt") else download_model(model))
    data = [{"src": t["source"], "mt": t["hypothesis"], "ref": t["reference"]} for t in texts]
    return [float(each) for each in scorer.predict(data, batch_size=8, gpus=0).scores]


def main(arguments, scores=score):
    """Read the texts and write their scores."""
    source, target, *rest = arguments
    model = rest[0] if rest else MODEL
    lines = [json.loads(line) for line in Path(source).read_text(encoding="utf8").split("\n") if line.strip()]
    texts = list(unique(lines).values())
    with open(target, "w", encoding="utf8") as file:
        for text, value in zip(texts, scores(texts, model)):
            file.write(json.dumps({"id": text["id"], "score": value, "model": model}) + "\n")
    print(f"{len(texts)} texts scored: {target}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1:])
