"""`make docs-site`: builds the docs as a site, and serves it on this machine.

`python tools/docs_site.py FOLDER` builds it into FOLDER/site.

The README is the home page, and docs/index.md the page of contents. Nothing in the site comes from elsewhere: Mermaid
is one of its files, from `.venv/mermaid` (tools/ensure.sh).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tools.make_reference import COMMITTED, PAGES, reference_page

ROOT = Path(__file__).parents[1]
MERMAID = ROOT / ".venv" / "mermaid" / "mermaid.min.js"
ADDRESS = ("127.0.0.1", 8789)
NAMES = {"README.md": "index.md", "docs/index.md": "docs/contents.md"}
"""Pages that have another name in the site."""
REFERENCE = {Path("docs", "reference", f"{name}.md"): name for name in PAGES if name not in COMMITTED}
"""Pages that are made for the site, from docstrings."""
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)")


def in_site(page: Path) -> Path:
    """Where a file of the repository is in the site: what is in docs/ is at its root."""
    name = Path(NAMES.get(page.as_posix(), page))
    return name.relative_to("docs") if name.parts[0] == "docs" else name


def with_links_of_site(page: Path, text: str) -> tuple[str, set[Path]]:
    """The text of a page with its links as they are in the site, and the files that it links to."""
    linked = set[Path]()

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / match[1]))
        if not (ROOT / target).is_file():
            return match[1]
        linked.add(target)
        return Path(os.path.relpath(in_site(target), in_site(page).parent)).as_posix()

    return _LINK.sub(moved, text), linked


def write_pages(folder: Path) -> None:
    """Write the reference, every page that links lead to from the README, and every file that these link to."""
    waiting, seen = [Path("README.md"), *REFERENCE], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        place = folder / in_site(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = reference_page(REFERENCE[path]) if path in REFERENCE else (ROOT / path).read_text("utf-8")
            text, linked = with_links_of_site(path, text)
            place.write_text(text, "utf-8")
            waiting += linked
        else:
            shutil.copy(ROOT / path, place)


def build(folder: Path) -> Path:
    """The folder of the site, built within the given one. Ends the process if a link leads nowhere."""
    docs = folder / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    write_pages(docs)
    (docs / "javascripts").mkdir()
    shutil.copy(MERMAID, docs / "javascripts")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout)
    return folder / "site"


def serve(site: Path) -> None:
    """Serve the site until Ctrl-C."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(ADDRESS, handler) as server:
        sys.stdout.write(f"the docs are at http://{ADDRESS[0]}:{ADDRESS[1]}/; Ctrl-C ends it\n")
        server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        build(Path(sys.argv[1]))
    else:
        serve(build(ROOT / "build"))
