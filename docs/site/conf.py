"""Sphinx's settings. `make docs` builds the site from what `python -m docs.site` has written."""

import os

from sphinx.ext.napoleon import GoogleDocstring

import genkidama

project = "Genkidama"
author = "The Genkidama authors"
version = genkidama.__version__
html_title = f"Genkidama {version}"
html_theme = "furo"
html_copy_source = False

# The menu of versions, of `docs/site/build.py`.
html_context = {
    "releases": os.environ.get("RELEASES", "").split(),
    "release_here": os.environ.get("RELEASE", ""),
}
templates_path = ["templates"]
_sidebar = ["brand", "search", "releases", "scroll-start", "navigation", "scroll-end"]
html_sidebars = {"**": [f"sidebar/{name}.html" for name in _sidebar]}

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
highlight_language = "text"
# Anchors of headings down to the fourth level, named as repositories show them.
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # a page may go from a first heading to a third
    "misc.highlighting_failure",  # an excerpt need not be a whole program
]

# What is large and needed by no docstring is not installed where the site is built.
autodoc_mock_imports = ["gymnasium", "matplotlib", "onnx", "onnxruntime", "optuna", "pandas"]
autodoc_mock_imports += ["rich", "shtab", "torch"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"

# Napoleon takes what stands before a colon in a property's first line for its type, which it has.
GoogleDocstring._consume_inline_attribute = lambda self: ("", self._consume_to_end())
