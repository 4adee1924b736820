"""What the deferral tests share: the recordings, and an agent's home folder."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).parent.parent / "data/deferral/fixtures.tar.xz"


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of recordings, unpacked."""
    folder = tmp_path_factory.mktemp("recordings")
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):  # Debian's 3.11.2 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder / "fixtures"


class Home:
    """A home folder with Claude Code's config and transcripts in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.claude = folder / ".claude"
        self.project = folder / "proj"
        (self.claude / "projects/p").mkdir(parents=True)
        (self.project / ".claude").mkdir(parents=True)

    def transcript(self, source: Path, name: str = "") -> Path:
        """Put a recording among the transcripts, as one of `project`."""
        target = self.claude / "projects/p" / (name or source.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        target.write_text(text.replace("/home/dev/w/", f"{self.project}/../"), encoding="utf-8")
        return target

    def transcript_of_two_sessions(self, source: Path) -> None:
        """Put a recording of one session among the transcripts twice, as two."""
        self.transcript(source)
        again = self.transcript(source, "again.jsonl")
        text = again.read_text(encoding="utf-8")
        # each session, request and message is counted once
        for name, other in (
            ("22222222-2222", "11111111-1111"),
            ('"r1"', '"r2"'),
            ("msg_a", "msg_b"),
        ):
            text = text.replace(name, other)
        again.write_text(text, encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for name in (
        "CLAUDE_CONFIG_DIR",
        "ENABLE_TOOL_SEARCH",
        "ANTHROPIC_BASE_URL",
        "CLAUDE_CODE_USE_VERTEX",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return Home(folder)
