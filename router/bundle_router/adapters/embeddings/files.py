"""The files of a sentence-transformers model: their places, their revision, and their settings.

Rules:
1. Nothing is downloaded and no code of the model runs: an installed package is only located, never
   imported.
2. The revision is the digest of every file that affects the vectors, so a replaced model is another
   model.
3. Unsupported settings are refused by name before anything is embedded: wrong pooling gives
   plausible nonsense.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WEIGHTS: Final = ("onnx/model.onnx", "model.onnx", "model.safetensors")
"""Names of files with the network; the first one that exists is used."""
MAX_WORD_PIECES: Final = 512
_INSIDE: Final = (".", "model", "models")
"""Possible places of the model's folder in a package."""
_MAX_HEADER: Final = 10_000_000


class UnusableModel(Exception):
    """The model can't be used; the message says why."""


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk.

    `pooling` is `mean` or `cls`; `max_pieces`: maximum word pieces of a text that it reads;
    `prompts`: see `Embedder`.
    """

    folder: Path
    weights: Path
    config: Mapping[str, Any]
    pooling: str
    prompts: tuple[str, str]
    max_pieces: int
    revision: str

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"


def find_model(source: str) -> ModelFiles:
    """Return the model in a folder (an absolute path) or in an installed package of that name.

    Reads all files once, for the revision: half a second for 100 MB. Raises UnusableModel.
    """
    folder = _folder_of(source)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
        if weights is None:
            raise UnusableModel(f"{folder} holds none of {', '.join(WEIGHTS)}")
        pooling = _pooling(folder)
        prompts = _prompts(folder)
        settings = _json_if_there(folder / "sentence_bert_config.json")
        limit = min(MAX_WORD_PIECES, int(config.get("max_position_embeddings", MAX_WORD_PIECES)))
        pieces = min(limit, int(settings.get("max_seq_length") or limit))
        return ModelFiles(
            folder, weights, config, pooling, prompts, pieces, _revision(folder, weights, prompts)
        )
    except (OSError, ValueError, TypeError, AttributeError) as wrong:
        raise UnusableModel(f"{folder}: {type(wrong).__name__}: {wrong}") from None


def _folder_of(source: str) -> Path:
    if Path(source).is_absolute():
        if not (Path(source) / "config.json").is_file():
            raise UnusableModel(f"{source} is not a folder with a model: it has no config.json")
        return Path(source)

    spec = None
    if source.isidentifier():
        spec = importlib.util.find_spec(source)
    if spec is None:
        raise UnusableModel(f"the package {source!r} is not installed")

    for place in spec.submodule_search_locations or ():
        for inside in _INSIDE:
            folder = Path(place) / inside
            if (folder / "config.json").is_file() and (folder / "tokenizer.json").is_file():
                return folder
    raise UnusableModel(f"the package {source!r} holds no model")


def _prompts(folder: Path) -> tuple[str, str]:
    settings = _json_if_there(folder / "config_sentence_transformers.json")
    stated = settings.get("prompts") or {}
    default = stated.get(settings.get("default_prompt_name"), "")
    document = next(
        (stated[name] for name in ("document", "passage", "corpus") if name in stated), default
    )
    return str(stated.get("query", default)), str(document)


def _pooling(folder: Path) -> str:
    modules = folder / "modules.json"
    for module in json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else ():
        if (kind := module["type"].rpartition(".")[2]) not in (
            "Transformer",
            "Pooling",
            "Normalize",
        ):
            raise UnusableModel(f"{folder}: the module {kind} is not supported")
    stated = _json_if_there(folder / "1_Pooling" / "config.json")
    used = {name for name, on in stated.items() if name.startswith("pooling_mode_") and on is True}
    if used in (set(), {"pooling_mode_mean_tokens"}):
        return "mean"
    if used == {"pooling_mode_cls_token"}:
        return "cls"
    raise UnusableModel(f"{folder}: pooling {', '.join(sorted(used))} is not supported")


def _json_if_there(file: Path) -> Mapping[str, Any]:
    loaded = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return loaded if isinstance(loaded, dict) else {}


def _revision(folder: Path, weights: Path, prompts: tuple[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(prompts).encode() if any(prompts) else b"")
    for file in (
        folder / "config.json",
        folder / "tokenizer.json",
        folder / "1_Pooling" / "config.json",
        folder / "sentence_bert_config.json",
        weights,
    ):
        if file.is_file():
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return f"sha256:{digest.hexdigest()}"


def read_tensors(file: Path) -> dict[str, Any]:
    """Return the 32-bit tensors of a safetensors file, as numpy arrays. Raises UnusableModel."""
    import numpy as np

    if file.stat().st_size > 8:
        data: Any = np.memmap(file, dtype=np.uint8, mode="r")
    else:
        data = np.zeros(8, np.uint8)
    (size,) = struct.unpack("<Q", data[:8].tobytes())
    if not 0 < size <= min(_MAX_HEADER, len(data) - 8):
        raise UnusableModel(f"{file} is not a safetensors file")
    header = json.loads(data[8 : 8 + size].tobytes())
    body = data[8 + size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] == "I64":
            continue  # position ids, which are 0, 1, 2 …
        if entry["dtype"] != "F32":
            raise UnusableModel(
                f"{file}: numbers of type {entry['dtype']} are not supported: export it as F32, or"
                " to ONNX"
            )
        first, last = entry["data_offsets"]
        tensors[name.removeprefix("bert.")] = body[first:last].view("<f4").reshape(entry["shape"])
    return tensors
