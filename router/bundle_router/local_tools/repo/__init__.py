"""The local server `repo`: reading the workspace, and nothing else.

| module | what |
|---|---|
| beneath, lineage, confinement | opening files beneath one directory, in two ways that agree |
| hiding, refusals | what nobody may enter, and the words for what is refused |
| reading, listing | `read_file`, `list_dir` |
| searching, hits, rg, globs, rereading | `ripgrep`, over the real one |
| history, gitview, gitrefs | `git_log`, `git_diff`, over a view that can't run anything |
| children | starting `rg` and `git`, confined or not at all |
"""

from __future__ import annotations

from bundle_router.core.values import LocalTool
from bundle_router.local_tools.repo.history import GitDiff, GitLog, git_diff, git_log
from bundle_router.local_tools.repo.hits import Ripgrep
from bundle_router.local_tools.repo.listing import ListDir, list_dir
from bundle_router.local_tools.repo.reading import ReadFile, read_file
from bundle_router.local_tools.repo.text_search import ripgrep

__all__ = ["TOOLS"]

TOOLS: tuple[LocalTool, ...] = (
    LocalTool(
        "read_file",
        "Read a file of the workspace: a range of lines of a text file, or an image, audio or other"
        " binary file as an artifact. Says which lines these are, of how many.",
        ReadFile,
        read_file,
    ),
    LocalTool(
        "list_dir",
        "List a folder of the workspace, one or more levels deep: folders end in '/', links show"
        " their target, files their size.",
        ListDir,
        list_dir,
    ),
    LocalTool(
        "ripgrep",
        "Search the workspace's files line by line with a regular expression. Skips .git, files"
        " that .gitignore names, binary files, files over 10 MiB and symlinks.",
        Ripgrep,
        ripgrep,
    ),
    LocalTool(
        "git_log",
        "List commits of the workspace's repository, newest first, filtered by path, date, author"
        " or revision range.",
        GitLog,
        git_log,
    ),
    LocalTool(
        "git_diff",
        "Show changes in the workspace's repository: in the working tree, staged, or between two"
        " revisions. Untracked files and submodules' contents are not shown.",
        GitDiff,
        git_diff,
    ),
)
