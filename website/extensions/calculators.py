"""Calculators: a form with the first answer in the page, and beside it what computes the others in the browser.

That is Pyodide, which is Python compiled for browsers, Vega, and a zip of the parts of the library that are needed.
Pyodide brings its standard library as sources. The site has compiled modules of what the calculators load: a browser
starts them with half the work.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import vl_convert
from calculators import calculator
from docutils import nodes
from jinja2 import Environment, FileSystemLoader
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from extensions.npm import ROOT, package

PYODIDE = "314.0.7"
_SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"  # of npm's package
_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json")
_WIDTH = 640  # of a picture until the page's program draws it as wide as the page
_ENVIRONMENT = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
# lists the files that the calculators import where nothing but the standard library is installed
_NEEDED = """
import sys
sys.path[:0] = sys.argv[1:3]
from calculators import NAMES, calculator
for name in NAMES:
    calculator.module_of(name).answer()
for module in list(sys.modules.values()):
    if module.__name__.partition(".")[0] in ("calculators", "worldsize"):
        print(module.__file__)
"""


class Calculator(SphinxDirective):
    """A calculator: `{calculator} what_fits`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        for path in needed():
            self.env.note_dependency(str(path))
        return [nodes.raw("", form(self.arguments[0]), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, and bring what the pages load once they are written."""
    app.add_directive("calculator", Calculator)
    app.connect("build-finished", _bring)
    return {"parallel_read_safe": True}


def form(name: str) -> str:
    """The questions, controls and first answer of a calculator."""
    page = calculator.module_of(name)
    controls = [
        {
            "kind": control.kind,
            "label": calculator.label(name, control.name),
            "texts": [text for text, _ in control.options],
            "start": control.start,
        }
        for control in calculator.controls(name)
    ]
    first = json.loads(calculator.answer(name, [control["start"] for control in controls]))
    picture = vl_convert.vegalite_to_svg({**first["chart"], "width": _WIDTH}) if first["chart"] else ""
    return _ENVIRONMENT.get_template("calculator.html.j2").render(
        name=name,
        title=calculator.title(name),
        question=page.QUESTION,
        reveal=calculator.reveal(name) if page.QUESTION else "",
        files=getattr(page, "FILES", ""),
        controls=controls,
        answer=first["html"],
        picture=picture,
    )


def needed() -> list[Path]:
    """The files of `worldsize` and `calculators` that the calculators import, and the data that these read."""
    command = [sys.executable, "-I", "-S", "-c", _NEEDED, str(ROOT), str(ROOT / "website")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted({*map(Path, printed.split("\n")[:-1]), *(ROOT / "worldsize/data").glob("*.csv")})


def _bring(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html" or not any(name.startswith("calculators/") for name in app.env.found_docs):
        return
    into = Path(app.outdir) / "_static/calculators"
    into.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(pyodide() / name, into / name)
    (into / "vega.js").write_text(vl_convert.javascript_bundle("globalThis.vegaEmbed = vegaEmbed;"), encoding="utf-8")
    with tempfile.TemporaryDirectory() as fresh:
        sources = Path(fresh) / "worldsize.zip"
        with zipfile.ZipFile(sources, "w") as bundle:
            for path in needed():
                top = ROOT / "website" if path.is_relative_to(ROOT / "website") else ROOT
                bundle.writestr(zipfile.ZipInfo(path.relative_to(top).as_posix()), path.read_bytes())
        command = ["node", Path(__file__).with_name("compile_modules.mjs"), pyodide(), sources, into]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:  # without node's echo of a line of Pyodide, which is megabytes
            raise ExtensionError(f"node did not compile the calculators' modules: {done.stderr[-2000:].strip()}")


def pyodide() -> Path:
    """The folder of Pyodide's files.

    Raises:
        ExtensionError: npm is not there, or gives something else.
    """
    return package("pyodide", PYODIDE, _SHA256)
