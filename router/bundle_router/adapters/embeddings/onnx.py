"""A local embedding model: the only module that imports tokenizers or onnxruntime.

Why no torch: it takes gigabytes, and a second to import. The small models that are worth running
beside a router (MiniLM, BGE, E5, GTE) are BERT encoders of six or twelve layers. numpy, which
search needs anyway, gives the same results as torch to the seventh digit, for one short text in
half the time. Other models are used as ONNX.

Rules:
1. Loaded on first use; nothing is downloaded, and no code of the model runs.
2. Texts of similar length are embedded together, and a batch's length is bounded: one page of text
   among words would otherwise make each of them cost a page.
3. Apart from the last bits, a text's vector does not depend on its batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.embeddings.files import (
    ModelFiles,
    UnusableModel,
    find_model,
    read_tensors,
)
from bundle_router.core.search.index import Embedding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Network = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]
    """Returns the last layer of ids and their mask: a vector for each word piece of each row."""

MAX_BATCH: Final = 32
MAX_BATCH_PIECES: Final = 512
"""Word pieces per batch, which fit a processor's cache.

Eight times as many take nearly twice the time a text.
"""


class LocalEmbedder:
    """`Embedder` over the model in a folder or package (see `find_model`).

    Many threads may use it.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._model: _Model | None = None
        self._broken = ""

    @property
    def name(self) -> str:
        return f"local:{self._source}"

    @property
    def revision(self) -> str:
        """The model's revision; loads the model. `unusable` if it can't be loaded."""
        if model := self._load_model():
            return model.files.revision
        return "unusable"

    @property
    def prompts(self) -> tuple[str, str]:
        if model := self._load_model():
            return model.files.prompts
        return ("", "")

    def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedding:
        """See `Embedder`.

        The time is checked between batches, each of which takes tens of milliseconds.
        """
        until = time.monotonic() + timeout_s
        model = self._load_model()
        if model is None:
            return Embedding(failure="internal", detail=self._broken)
        vectors: list[tuple[float, ...]] = [()] * len(texts)
        try:
            for part in model.batches(texts):
                if time.monotonic() > until:
                    return Embedding(failure="timeout")
                for position, row in zip(
                    part, model.run([texts[position] for position in part]).tolist(), strict=True
                ):
                    vectors[position] = tuple(row)
        except (
            KeyError,
            ValueError,
            IndexError,
        ) as wrong:  # tensors that are missing, or of another shape
            return Embedding(failure="internal", detail=f"{type(wrong).__name__}: {wrong}")
        return Embedding(tuple(vectors))

    def close(self) -> None:
        """Release the model. Idempotent."""
        with self._lock:
            self._model = None

    def _load_model(self) -> _Model | None:
        with self._lock:
            if self._model is None and not self._broken:
                try:
                    self._model = _Model(find_model(self._source))
                except UnusableModel as why:
                    self._broken = str(why)
                except (
                    KeyError,
                    TypeError,
                    ValueError,
                    OSError,
                ) as wrong:  # files with unexpected content
                    self._broken = f"{self._source}: {type(wrong).__name__}: {wrong}"
            return self._model


class _Model:
    """Tokenizer, network and pooling."""

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        try:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(files.tokenizer))
        except ImportError:
            raise UnusableModel("a local model needs the extra bundle-router[embeddings]") from None
        except Exception as wrong:  # noqa: BLE001 - tokenizers raises bare Exception for a file it can't read
            raise UnusableModel(f"{files.tokenizer}: {wrong}") from None
        self._tokenizer.enable_truncation(files.max_pieces)
        self._tokenizer.no_padding()
        self._network: _Network = _Onnx(files) if files.weights.suffix == ".onnx" else _Bert(files)

    def batches(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield positions of the texts to embed together, shortest first."""
        part: list[int] = []
        for position in sorted(range(len(texts)), key=lambda i: (len(texts[i]), i)):
            # A word piece is at least one character: characters bound pieces from above.
            longest = min(len(texts[position]) + 2, self.files.max_pieces)
            if part and (len(part) == MAX_BATCH or (len(part) + 1) * longest > MAX_BATCH_PIECES):
                yield part
                part = []
            part.append(position)
        if part:
            yield part

    def run(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np

        clean = [
            text.encode("utf-8", "replace").decode("utf-8") for text in texts
        ]  # tokenizers take no lone surrogate
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(clean)]
        width = max(map(len, rows))
        ids = np.zeros((len(rows), width), np.int64)
        mask = np.zeros((len(rows), width), np.int64)
        for row, pieces in enumerate(rows):
            ids[row, : len(pieces)] = pieces
            mask[row, : len(pieces)] = 1
        out = self._network(ids, mask)
        if self.files.pooling == "cls":
            pooled = out[:, 0]
        else:
            weight = mask[:, :, None].astype(np.float32)
            pooled = (out * weight).sum(axis=1) / np.maximum(weight.sum(axis=1), 1.0)
        lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
        unit: NDArray[np.float32] = (pooled / np.where(lengths > 0.0, lengths, 1.0)).astype(
            np.float32
        )
        return unit


class _Onnx:
    """The network as its ONNX export."""

    def __init__(self, files: ModelFiles) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise UnusableModel(
                f"{files.weights.name} needs the extra bundle-router[onnx]"
            ) from None
        try:
            self._session = onnxruntime.InferenceSession(
                str(files.weights), providers=["CPUExecutionProvider"]
            )
        except Exception as wrong:  # noqa: BLE001 - onnxruntime's own errors share no class below this
            raise UnusableModel(f"{files.weights}: {str(wrong)[:200]}") from None
        self._inputs = {entry.name for entry in self._session.get_inputs()}
        if not self._inputs <= {"input_ids", "attention_mask", "token_type_ids"}:
            raise UnusableModel(f"{files.weights}: it wants {', '.join(sorted(self._inputs))}")

    def __call__(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        import numpy as np

        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        last: NDArray[np.float32] = self._session.run(
            None, {name: inputs[name] for name in self._inputs}
        )[0]
        return last


class _Bert:
    """BERT's encoder (Devlin et al., 2019) in numpy, from its safetensors."""

    def __init__(self, files: ModelFiles) -> None:
        config = files.config
        if (kind := config.get("model_type")) != "bert" or config.get("hidden_act") != "gelu":
            raise UnusableModel(
                f"{files.folder}: a {kind!r} model is only usable as ONNX, in onnx/model.onnx"
            )
        self._tensors = read_tensors(files.weights)
        self._layers = int(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._epsilon = float(config["layer_norm_eps"])
        missing = {
            "embeddings.word_embeddings.weight",
            f"encoder.layer.{self._layers - 1}.output.dense.weight",
        }
        if missing - self._tensors.keys():
            raise UnusableModel(f"{files.weights}: not BERT's tensors")

    def __call__(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        import numpy as np

        w = self._tensors
        places = w["embeddings.position_embeddings.weight"]
        kinds = w["embeddings.token_type_embeddings.weight"]
        state = w["embeddings.word_embeddings.weight"][ids] + places[: ids.shape[1]] + kinds[0]
        state = self._normalise_layer(state, "embeddings.LayerNorm")
        hidden = np.where(mask[:, None, None, :] == 1, np.float32(0), np.float32(-1e9))
        for layer in range(self._layers):
            prefix = f"encoder.layer.{layer}"
            attention = self._dense(
                self._attend(state, hidden, f"{prefix}.attention.self"),
                f"{prefix}.attention.output.dense",
            )
            state = self._normalise_layer(state + attention, f"{prefix}.attention.output.LayerNorm")
            wide = _gelu(self._dense(state, f"{prefix}.intermediate.dense"))
            state = self._normalise_layer(
                state + self._dense(wide, f"{prefix}.output.dense"), f"{prefix}.output.LayerNorm"
            )
        last: NDArray[np.float32] = state
        return last

    def _attend(self, state: Any, hidden: Any, at: str) -> Any:
        import numpy as np

        rows, pieces, size = state.shape
        shape = (rows, pieces, self._heads, size // self._heads)
        query, key, value = (
            self._dense(state, f"{at}.{name}").reshape(shape).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        weight = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(shape[3])) + hidden
        weight = np.exp(weight - weight.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        return (weight @ value).transpose(0, 2, 1, 3).reshape(rows, pieces, size)

    def _dense(self, state: Any, name: str) -> Any:
        return state @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]

    def _normalise_layer(self, state: Any, name: str) -> Any:
        import numpy as np

        centred = state - state.mean(axis=-1, keepdims=True)
        spread = np.sqrt(
            (centred * centred).mean(axis=-1, keepdims=True) + np.float32(self._epsilon)
        )
        return centred / spread * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]


def _gelu(state: Any) -> Any:
    """Return x Φ(x), with the error function as Abramowitz and Stegun 7.1.26 (within 1.5e-7)."""
    import numpy as np

    f = np.float32
    z = np.abs(state) * f(0.7071067811865476)
    t = f(1) / (f(1) + f(0.3275911) * z)
    series = (
        (((f(1.061405429) * t - f(1.453152027)) * t + f(1.421413741)) * t - f(0.284496736)) * t
        + f(0.254829592)
    ) * t
    return f(0.5) * state * (f(1) + np.sign(state) * (f(1) - series * np.exp(-z * z)))
