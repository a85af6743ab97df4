"""What mkdocs is told beside mkdocs.yml: README.md and SECURITY.md are pages of the site, too."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_PAGES = {"index.md": "README.md", "report.md": "SECURITY.md"}
_LINKS = {
    "](docs/": "](",
    "](../": "](",
    "](README.md": "](index.md",
    "](SECURITY.md": "](report.md",
    "](CONTRIBUTING.md": "](contributing.md",
    "[LICENSE](LICENSE)": "the file LICENSE",
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that stand beside docs/."""
    root = Path(config.config_file_path).parent
    for name, source in _PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(root / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the repository, to where they lead on the site."""
    for repository, site in _LINKS.items():
        markdown = markdown.replace(repository, site)
    return markdown
