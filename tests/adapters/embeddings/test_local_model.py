"""A model on this machine: the vectors that PyTorch makes, from the same files, without it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_router.adapters.embeddings import LocalEmbedder

DATA = Path(__file__).parents[2] / "data" / "tiny_bert"
EXPECTED = json.loads((DATA / "expected.json").read_text())

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None,
    reason="the extra bundle-router[embeddings] is not installed",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    shutil.copytree(DATA, made)
    return made


def as_onnx(folder: Path) -> None:
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("the extra bundle-router[onnx] is not installed")
    (folder / "onnx").mkdir()
    (folder / "exported.onnx").rename(folder / "onnx" / "model.onnx")


def as_it_is(folder: Path) -> None:
    pass


@pytest.mark.parametrize("prepare", [as_it_is, as_onnx])
def test_vectors_are_those_of_pytorch(folder: Path, prepare: Callable[[Path], None]) -> None:
    prepare(folder)
    made = LocalEmbedder(str(folder)).embed([row["text"] for row in EXPECTED], timeout_s=60)
    assert made.failure is None, made.detail
    for vector, row in zip(made.vectors, EXPECTED, strict=True):
        assert vector == pytest.approx(row["vector"], abs=1e-5), row["text"]


def test_a_text_comes_to_the_same_alone_and_among_others(folder: Path) -> None:
    embedder = LocalEmbedder(str(folder))
    texts = [
        "open a ticket",
        "read",
        "search the code of the repository for a bug in the tests",
        "",
    ] * 20
    together = embedder.embed(texts, timeout_s=60).vectors
    assert len(together) == len(texts)
    for text, vector in zip(texts[:4], together[:4], strict=True):
        assert embedder.embed([text], timeout_s=60).vectors[0] == pytest.approx(vector, abs=1e-6)


def test_every_string_is_embedded(folder: Path) -> None:
    texts = ["", " ", "\x00\x1b[31m", "日本語", "\ud800", "a" * 100_000, "read " * 20_000]
    made = LocalEmbedder(str(folder)).embed(texts, timeout_s=60)
    assert made.failure is None, made.detail
    assert {len(vector) for vector in made.vectors} == {16}


def test_an_installed_package_is_found_and_not_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not run')\n")
    shutil.move(folder, package / "model")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = LocalEmbedder("some_model").embed(["read the file"], timeout_s=60)
    assert made.failure is None, made.detail
    assert made.vectors[0] == pytest.approx(EXPECTED[0]["vector"], abs=1e-5)
    assert "some_model" not in sys.modules


def test_the_revision_changes_with_every_file_that_has_a_say(folder: Path) -> None:
    first = LocalEmbedder(str(folder)).revision
    assert first.startswith("sha256:")
    assert LocalEmbedder(str(folder)).revision == first
    found = {first}
    for name in (
        "config.json",
        "tokenizer.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
    ):
        (folder / name).write_text((folder / name).read_text() + " ")
        found.add(LocalEmbedder(str(folder)).revision)
    assert len(found) == 5


@pytest.mark.parametrize(
    ("stated", "prompts"),
    [
        ({"prompts": {"query": "ask: ", "document": ""}}, ("ask: ", "")),
        ({"prompts": {"query": "query: ", "passage": "passage: "}}, ("query: ", "passage: ")),
        ({"prompts": {"all": "text: "}, "default_prompt_name": "all"}, ("text: ", "text: ")),
        ({"prompts": {"clustering": "topic: "}}, ("", "")),
        ({"prompts": None, "default_prompt_name": None}, ("", "")),
    ],
)
def test_the_prompts_are_those_that_its_files_name(
    folder: Path, stated: dict[str, object], prompts: tuple[str, str]
) -> None:
    before = LocalEmbedder(str(folder))
    assert before.prompts == ("", "")
    (folder / "config_sentence_transformers.json").write_text(json.dumps(stated))
    embedder = LocalEmbedder(str(folder))
    assert embedder.prompts == prompts
    assert (embedder.revision != before.revision) is any(prompts)


def test_time_that_is_up_ends_it(folder: Path) -> None:
    embedder = LocalEmbedder(str(folder))
    assert embedder.embed(["read"], timeout_s=60).failure is None
    assert embedder.embed(["read"], timeout_s=-1.0).failure == "timeout"


def changed(name: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        loaded = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**loaded, **values}))

    change.__name__ = f"{name} with {values}"
    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def written(name: str, data: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return write


def dense(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[2:2] = [
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def half_precision(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"F16"', 1))


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:9_000])


UNUSABLE: list[tuple[str, Callable[[Path], None], str]] = [
    ("no config", without("config.json"), "it has no config.json"),
    ("no weights", without("model.safetensors"), "holds none of"),
    ("no tokenizer", without("tokenizer.json"), "tokenizer.json"),
    ("another network", changed("config.json", model_type="mpnet"), "only usable as ONNX"),
    ("another activation", changed("config.json", hidden_act="relu"), "only usable as ONNX"),
    ("more layers than there are", changed("config.json", num_hidden_layers=9), "not BERT's tensors"),
    ("heads that do not divide", changed("config.json", num_attention_heads=5), "ValueError"),
    ("another pooling", changed("1_Pooling/config.json", pooling_mode_max_tokens=True), "is not supported"),
    ("another module", dense, "the module Dense is not supported"),
    ("half precision", half_precision, "F16 are not supported"),
    ("config that is no JSON", written("config.json", b"{"), "JSONDecodeError"),
    ("config of something else", written("config.json", b"[]"), "AttributeError"),
    ("a tokenizer of something else", written("tokenizer.json", b"{}"), "tokenizer.json"),
    ("weights of nothing", written("model.safetensors", b""), "is not a safetensors file"),
    ("weights with a mad header", written("model.safetensors", struct.pack("<Q", 1 << 60)), "not a safetensors file"),
    ("weights cut off", cut_off, "Error"),
    ("onnx of something else", written("model.onnx", b"not a network"), "model.onnx"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "said"), [row[1:] for row in UNUSABLE], ids=[row[0] for row in UNUSABLE]
)
def test_what_can_not_be_used_is_said_and_not_raised(
    folder: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(folder)
    embedder = LocalEmbedder(str(folder))
    made = embedder.embed(["read the file"], timeout_s=60)
    assert made.failure == "internal"
    assert said in made.detail
    assert made.vectors == ()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("no_such_package_at_all", "is not installed"),
        ("json", "holds no model"),
        ("../model", "is not installed"),
        ("/no/such/folder", "it has no config.json"),
    ],
)
def test_a_model_that_is_not_there_is_said(source: str, said: str) -> None:
    made = LocalEmbedder(source).embed(["x"], timeout_s=60)
    assert made.failure == "internal"
    assert said in made.detail
    assert LocalEmbedder(source).revision == "unusable"
