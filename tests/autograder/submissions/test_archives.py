"""What zip_collect unpacks: all that can be, and nothing outside its folder."""

import gzip
import io
import logging
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Configurable

from autograder.submissions.collecting.archives import Extractor

KILOBYTES = 200  # of an archive in an archive


class App(Configurable):
    """What an extractor needs of nbgrader's command."""

    coursedir = CourseDirectory(max_dir_size=KILOBYTES)


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def tarred(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


@pytest.fixture
def extract(tmp_path, caplog):
    """A function that unpacks these archives and tells the files that came out, and what was said."""

    def unpack(archives: dict[str, bytes], **options) -> tuple[set[str], str]:
        for name, data in archives.items():
            path = tmp_path / "archive" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        extractor = Extractor(parent=App(), **options)
        extractor.log = logging.getLogger("archives")
        extractor.extract(str(tmp_path / "archive"), str(tmp_path / "extracted"))
        found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
        return {name for name in found if not name.startswith("archive/")}, caplog.text

    return unpack


def locked() -> bytes:
    data = bytearray(zipped({"ada_lab.ipynb": b"{}"}))
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # the flag that says encrypted, in both headers
        data[data.index(signature) + offset] |= 1
    return bytes(data)


def test_endings_in_capitals_are_archives_too(extract):
    inner = tarred({"lab.ipynb": b"{}"})
    found, _ = extract({"LAB01.ZIP": zipped({"Eve.Tar.GZ": inner}), "BROKEN.ZIP": b"no zip"})
    assert found == {"extracted/LAB01/Eve.Tar.GZ", "extracted/LAB01/Eve/lab.ipynb"}


def test_archives_and_those_in_them_are_unpacked_and_other_files_copied(extract):
    inner = zipped({"lab.ipynb": b"{}"})
    outer = zipped({"ada.zip": inner, "bob_lab.ipynb": b"{}", "deep/eve.tar.gz": tarred({"x/lab.ipynb": b"{}"})})
    found, said = extract({"all.zip": outer, "week/cleo_lab.ipynb": b"{}"})
    assert found == {
        "extracted/all/ada.zip",
        "extracted/all/ada/lab.ipynb",
        "extracted/all/bob_lab.ipynb",
        "extracted/all/deep/eve.tar.gz",
        "extracted/all/deep/eve/x/lab.ipynb",
        "extracted/week/cleo_lab.ipynb",
    }
    assert "Not unpacked" not in said


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (zipped({"ada_lab.ipynb": bytes(999)})[:60], "Not a gzipped file"),
        (b"", "truncated|empty"),
        (gzip.compress(b"no tar"), "header|truncated"),
        (tarred({"lab.ipynb": bytes(9999)})[:-20], "ended before"),
        (locked(), "encrypted"),
        (zipped({"zeros": bytes(300_000)}), "unpacks to more than 200,000 bytes"),
        (tarred({"zeros": bytes(300_000)}), "unpacks to more than 200,000 bytes"),
        (zipped({str(number): b"" for number in range(99)}), "unpacks to more than 200,000 bytes"),
        (zipped({f"{number}.zip": zipped({"zeros": bytes(90_000)}) for number in range(3)}), "more than 200,000 bytes"),
        (zipped({"a": b"", "a/b": b""}), "File exists|Not a directory"),
    ],
    ids=["cut", "empty", "no tar", "cut tar", "locked", "bomb", "tar bomb", "files", "inner bombs", "clash"],
)
def test_a_students_archive_that_cannot_be_unpacked_is_named_and_stops_nobody(extract, broken, reason):
    found, said = extract({"all.zip": zipped({"ada.zip": broken, "bob.zip": zipped({"lab.ipynb": b"{}"})})})
    assert "extracted/all/bob/lab.ipynb" in found and "extracted/all/ada/lab.ipynb" not in found
    assert "Not unpacked: " in said and re.search(reason, said)


def test_an_archive_that_holds_itself_ends(extract):
    data = zipped({"lab.ipynb": b"{}"})
    for _ in range(6):
        data = zipped({"again.zip": data})
    found, said = extract({"all.zip": data})
    assert len(found) < 9 and "it lies in more than 3 archives" in said


def test_a_name_that_no_file_system_takes_is_cut_before_its_ending(extract):
    long = "ada_4711_88_" + "長" * 90
    found, _ = extract({"all.zip": zipped({f"{long}.ipynb": b"{}", "ben_4712_89_lab.ipynb": b""})})
    (cut,) = found - {"extracted/all/ben_4712_89_lab.ipynb"}
    name = cut.removeprefix("extracted/all/")
    assert name.startswith("ada_4711_88_長長") and name.endswith("長.ipynb") and 250 < len(name.encode()) <= 255


def test_nothing_comes_out_beside_its_folder_and_no_link(extract):
    names = {
        "../up.ipynb": b"{}",
        "/abs.ipynb": b"{}",
        "a/../../up.ipynb": b"{}",
        "..\\up.ipynb": b"{}",
        "in.ipynb": b"",
    }
    links = {"leak.ipynb": "/etc/passwd", "out": "/tmp"}
    odd = {"out/x.ipynb": b"", "\udcff.ipynb": b""}  # the second is no UTF-8
    found, _ = extract({"ada.zip": zipped(names), "bob.tar.gz": tarred(names | odd, links)})
    of_bob = {f"extracted/bob/{name}" for name in ("in.ipynb", "out/x.ipynb", "?.ipynb")}
    assert found == {"extracted/ada/in.ipynb"} | of_bob
    assert not Path("/tmp/x.ipynb").exists()


def test_what_is_damaged_as_a_whole_leaves_nothing_behind(extract):
    found, said = extract({"all.zip": zipped({"lab.ipynb": bytes(9000)}), "bob_lab.ipynb": b""}, max_archive_bytes=5000)
    assert found == {"extracted/bob_lab.ipynb"} and "Not unpacked: all.zip" in said
