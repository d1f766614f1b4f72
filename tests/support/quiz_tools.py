"""Other people's readers of quiz formats, fetched once into pytest's cache: what reads a format there is the judge.

- Pyslet (PyPI, BSD) parses QTI 2.1 and runs its response processing; its source ships the QTI 1.2.1 DTD.
- amc2moodle (PyPI, GPL) reads Moodle XML, to print it: choices, numbers and essays, of the kinds that we write.
- qti2latex (PyPI, MIT) reads the packages that Canvas exports, to print them: groups and choices.

No package of PyPI or Debian was found that ships the XML Schema of QTI 2.1; `quiz_qti21.py` checks its structure.
"""

import json
import subprocess
import sys
import tarfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from fetched import fetched  # noqa: F401 - a fixture

_HERE = Path(__file__).parent


def _pip(*options):
    return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", *options, "-d"]


@pytest.fixture(scope="session")
def pyslet_source(fetched):  # noqa: F811
    """The source of Pyslet."""

    def unpack(folder):
        (archive,) = folder.glob("pyslet*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")

    command = _pip("--no-binary", ":all:", "pyslet==0.7.20170805")
    return fetched("pyslet-0.7.20170805", command, unpack) / "pyslet-0.7.20170805"


@pytest.fixture(scope="session")
def qti12_dtd(pyslet_source):
    """The DTD of QTI 1.2.1, which 1EdTech (then IMS) published."""
    from lxml import etree

    return etree.DTD(str(pyslet_source / "unittests/data_imsqtiv1p2p1/ims_qtiasiv1p2p1.dtd"))


@contextmanager
def _reader(name, folder):
    """Ask a reader of `foreign_readers.py`, in a process of its own, so that nothing that it imports stays in ours."""
    command = [sys.executable, str(_HERE / "foreign_readers.py"), name, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(request):
            print(json.dumps(request), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline() or pytest.fail(f"{name} ended; see its traceback."))

        yield ask
        process.stdin.close()


@pytest.fixture(scope="session")
def qti21_engine(pyslet_source):
    """Score an item: its XML and responses by name, to the score and the identifiers of what is shown."""
    with _reader("pyslet", pyslet_source) as ask:

        def score(item, responses):
            score, shown = ask((item.decode(), responses))
            return score, set(shown)

        yield score


def _wheel(fetched, name, version):  # noqa: F811
    """The folder of a package, unpacked and not installed."""

    def unpack(folder):
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            files.extractall(folder)

    return fetched(f"{name}-{version}", _pip(f"{name}=={version}"), unpack)


@pytest.fixture(scope="session")
def amc2moodle(fetched):  # noqa: F811
    """Read a Moodle XML file with amc2moodle: its questions as dicts."""
    with _reader("amc2moodle", _wheel(fetched, "amc2moodle", "2.12.1")) as ask:
        yield ask


@pytest.fixture(scope="session")
def qti2latex(fetched):  # noqa: F811
    """Read a Canvas assessment with qti2latex: its groups as dicts."""
    with _reader("qti2latex", _wheel(fetched, "qti2latex", "0.1.6")) as ask:
        yield ask
