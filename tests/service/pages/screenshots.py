"""Makes the two pictures of the README: the runs (light) and a run (dark), over the sample team's
runs.

python -m tests.service.pages.screenshots .github
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bundle_router.workbench.run_reader import open_reader

from tests.service.pages.browsing import BrowserThread, missing, served
from tests.service.pages.sample_runs import team, write

PICTURES = (("pages-runs.png", "/runs", "light"), ("pages-run.png", "/runs/bugfix-006", "dark"))
SIZE = {"width": 1100, "height": 720}


def main(folder: Path) -> None:
    if why := missing():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as made:
        # Its own name would stand in the picture.
        runs = write(team().runs, Path(made) / "runs")
        reader = open_reader(runs, config=Path("config"))
        reader.where = "runs"
        reader.refresh(now=True)
        browser = BrowserThread()
        with served(reader) as address:
            for name, path, scheme in PICTURES:

                def taken(name: str = name, path: str = path, scheme: str = scheme) -> None:
                    context = browser.browser.new_context(viewport=SIZE, color_scheme=scheme)
                    page = context.new_page()
                    page.goto(address + path)
                    page.screenshot(path=str(folder / name))
                    context.close()

                browser.run(taken)
                print(folder / name, f"{(folder / name).stat().st_size:,} bytes")
        browser.close()
        reader.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
