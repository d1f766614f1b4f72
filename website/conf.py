"""Sphinx's settings for the site of the course; `python website` stages its pages and calls Sphinx with them."""

import os
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))  # the extensions below

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
project = PROJECT["name"]
release = version = PROJECT["version"]
repository_url = PROJECT.get("urls", {}).get("Repository", "")  # for links to files, and to report a mistake
html_title = project
html_show_copyright = False

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "extensions.calculators",
    "extensions.cells",
    "extensions.cheats",
    "extensions.citations",
    "extensions.descriptions",
    "extensions.docstrings",
    "extensions.download",
    "extensions.formulas",
    "extensions.links",
    "extensions.measured",
    "extensions.mistakes",
    "extensions.pictures",
    "extensions.questions",
    "extensions.search",
    "extensions.slides",
]
exclude_patterns = ["**/build", "**/.ipynb_checkpoints"]  # what the lessons write
root_doc = "index"
nitpicky = False
suppress_warnings = [
    "misc.highlighting_failure",  # cells of %%torchrun and the like
    "myst.header",  # a lesson's headings may skip a level
    "mystnb.lexer",
    "ref.python",  # a name that two modules offer is one thing
]

# Notebooks are executed once: jupyter-cache knows each by its code, and its folder by the library that it ran on.
nb_execution_mode = "cache"
nb_execution_cache_path = os.environ.get("WORLDSIZE_SITE_CACHE", "")
nb_execution_excludepatterns = ["labs/*/*.ipynb"]  # a lab is released unsolved, so there is nothing to run
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 4
myst_all_links_external = True  # extensions/links.py follows them: what is no page must not be copied into the site

default_role = "code"  # docstrings put code between single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # torch's point to labels of torch's own pages
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["site.css"]
html_favicon = "static/favicon.svg"
html_search_scorer = str(HERE / "static/scorer.js")
html_js_files = ["theme.js", "self_check.js", "checklist.js"]
html_math_renderer = "mathml"
html_show_search_summary = False  # it would fetch pages, which a browser refuses from file://
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}
