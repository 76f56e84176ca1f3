"""Measure the memory of loading a large diffusion checkpoint, in a process that does nothing else.

The checkpoint is synthetic: LLaDA's names and proportions (the largest tensor is about 6 % of it, as in the
8 B model), random bfloat16 numbers, several files and an index. Memory is read from /proc, so this needs
Linux.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from specviz.errors import SpecvizError

WIDTH, INNER, ROWS, HEADS = 2048, 6144, 16384, 16  # INNER is 3 times WIDTH, as in LLaDA-8B
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
EVERY = 0.002  # seconds between samples of the anonymous memory, whose peak Linux does not keep


def loading(gigabytes: float = 1.2, shards: int = 5, dtype: str = "stored") -> dict[str, Any]:
    """Write a checkpoint, load it in a fresh process, and report that process's memory.

    Parameters
    ----------
    gigabytes : float
        Least size of the weights, in 1e9 bytes. They are written to the temporary folder and removed.
    shards : int
        Number of files.
    dtype : str
        As for `specviz.load`; ``stored`` is that of the files.

    Returns
    -------
    dict
        ``bytes`` of the checkpoint's tensors, their number ``tensors``, the ``largest`` one's bytes,
        ``shards``, ``dtype`` and ``seconds`` of the load. Memory in bytes: ``before`` (resident before the
        load, with the libraries), ``peak`` (largest resident, with pages of mapped files), and without
        these pages ``anonymous_before``, ``anonymous_peak`` and ``anonymous`` (after the load). Ratios to
        ``bytes``: ``resident_ratio`` (peak less before), ``anonymous_ratio`` (likewise), and
        ``whole_ratio`` (the whole peak, with the libraries).

    Raises
    ------
    SpecvizError
        On a system other than Linux, or if the process fails.
    """
    if not CLEAR.exists():
        raise SpecvizError("the memory of a load is measured by /proc: run this on Linux")
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "synthetic"
        made = write(folder, round(gigabytes * 1e9), shards)
        child = subprocess.run(
            [sys.executable, __file__, str(folder), dtype],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if child.returncode:
        said = child.stderr.strip().splitlines()
        raise SpecvizError(f"the process that loads the checkpoint failed: {said[-1] if said else 'no word'}")
    found = made | {"shards": shards, "dtype": dtype} | json.loads(child.stdout)
    size = found["bytes"]
    return found | {
        "resident_ratio": (found["peak"] - found["before"]) / size,
        "anonymous_ratio": (found["anonymous_peak"] - found["anonymous_before"]) / size,
        "whole_ratio": found["peak"] / size,
    }


def write(folder: Path, size: int, shards: int) -> dict[str, int]:
    """Write a checkpoint of at least `size` bytes, file by file.

    Returns
    -------
    dict
        ``bytes``, ``tensors`` and ``largest``.
    """
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    layer = {
        "attn_norm": (WIDTH,), "ff_norm": (WIDTH,), "q_proj": (WIDTH, WIDTH), "k_proj": (WIDTH, WIDTH),
        "v_proj": (WIDTH, WIDTH), "attn_out": (WIDTH, WIDTH), "ff_proj": (INNER, WIDTH),
        "up_proj": (INNER, WIDTH), "ff_out": (WIDTH, INNER),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"wte": (ROWS, WIDTH)}
    layers = 0
    while layers == 0 or 2 * (_numbers(shapes) + WIDTH + ROWS * WIDTH) < size:
        shapes |= {f"blocks.{layers}.{part}": shape for part, shape in layer.items()}
        layers += 1
    shapes |= {"ln_f": (WIDTH,), "ff_out": (ROWS, WIDTH)}
    folder.mkdir(parents=True)
    total, written = _numbers(shapes), 0
    files: list[dict[str, Any]] = [{} for _ in range(shards)]
    for part, shape in shapes.items():
        files[min(written * shards // total, shards - 1)][f"model.transformer.{part}.weight"] = shape
        written += math.prod(shape)
    where: dict[str, str] = {}
    generator = torch.Generator().manual_seed(0)
    for i, held in enumerate(files):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        made = {
            key: torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)
            for key, shape in held.items()
        }
        save_file(made, folder / name)
        where |= dict.fromkeys(held, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 2 * total}, "weight_map": where})
    )
    words = Tokenizer(
        models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    words.pre_tokenizer, words.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    words.add_special_tokens(["<|endoftext|>", "<|mdm_mask|>"])
    words.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "block_type": "llama", "rope": True,
        "layer_norm_type": "rms", "activation_type": "silu", "weight_tying": False, "d_model": WIDTH,
        "n_heads": HEADS, "n_layers": layers, "mlp_hidden_size": INNER, "embedding_size": ROWS,
        "vocab_size": ROWS, "max_sequence_length": 4096, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "eos_token_id": 256, "mask_token_id": 257,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return {"bytes": 2 * total, "tensors": len(shapes), "largest": 2 * ROWS * WIDTH}


def _numbers(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _held() -> dict[str, int]:
    """This process's memory in bytes, by field of /proc/self/status."""
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return {
        line[0][:-1]: 1024 * int(line[1]) for line in lines if line[0] in ("VmRSS:", "VmHWM:", "RssAnon:")
    }


def _measure(folder: str, dtype: str) -> dict[str, float]:
    """Load the checkpoint in this process, and return its memory."""
    import specviz.models.fetching  # noqa: F401 - the libraries are not part of what a checkpoint costs
    from specviz.models import load

    CLEAR.write_text("5")  # resets the peak
    before = _held()
    most, done = [before["RssAnon"]], threading.Event()

    def watch() -> None:
        while not done.wait(EVERY):
            most.append(_held()["RssAnon"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    try:
        model = load(folder, dtype=dtype)
    finally:
        seconds = time.perf_counter() - begin
        done.set()
        watcher.join()
    after = _held()
    assert model.kind == "diffusion"
    return {
        "seconds": seconds,
        "before": before["VmRSS"],
        "peak": after["VmHWM"],
        "anonymous_before": before["RssAnon"],
        "anonymous_peak": max(*most, after["RssAnon"]),
        "anonymous": after["RssAnon"],
    }


if __name__ == "__main__":
    print(json.dumps(_measure(*sys.argv[1:])))
