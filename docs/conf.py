"""Configuration of the documentation site; `make docs` builds it with warnings as errors."""  # noqa: INP001 - a script beside the documents, not a package

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

import ftcomm

project = "ftcomm"
author = "ftcomm developers"
copyright = author  # noqa: A001 - the name that Sphinx reads
version = release = ftcomm.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
# A block without a language is a command or its output.
highlight_language = "text"
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"ftcomm {release}"
html_show_copyright = False

# A link to a heading is checked like a link to a file; GitHub makes the same anchors.
myst_heading_anchors = 4
# Diagrams stay text, so that the site loads nothing from elsewhere.
lexers["mermaid"] = TextLexer()

# Docstrings mark names by single backticks.
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
