"""Reading untrusted files in a separate process with limits on memory and CPU time.

Python's parsers of source and of JSON can need gigabytes for a file of a few hundred kilobytes. The process returns
only plain data.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from autograder.submissions import Malformed
from autograder.submissions.bounded_program import line
from autograder.submissions.cell_facts import CellFacts

MEMORY_BYTES = 512 << 20
CPU_S = 10
LIMITS = f"{MEMORY_BYTES >> 20} MB of memory and {CPU_S} s"  # in the words that students read
_MAX_ANSWER_BYTES = 64 << 20
_NUM_KEPT = 8  # cached answers about sources: nbgrader repeats the judge's requests
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv[1])
from autograder.submissions import bounded_program
bounded_program.main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
"""
_TURN = threading.Lock()  # one process at a time, so that the limits hold for a whole class


def content_of(file: IO[bytes]) -> Any:
    """Read the content of a large notebook without outputs, like `notebook_json.content_of`.

    Raises:
        Malformed: as there, or the limits are too low for the file.
    """
    for answer in _answers("content", file):
        if "malformed" in answer:
            raise Malformed(answer["malformed"])
        return answer["content"]
    raise Malformed(f"The file cannot be read within {LIMITS}; clear its outputs and submit again.")


@functools.lru_cache(_NUM_KEPT)
def facts(sources: tuple[str, ...]) -> list[CellFacts]:
    """Find the facts about each source, up to the first source for which the limits are too low."""
    with tempfile.TemporaryFile() as asked:
        asked.write(line(sources))
        asked.seek(0)
        return [CellFacts(text, tuple(names), bare) for text, names, bare in _answers("facts", asked)]


def _answers(kind: str, asked: IO[bytes]) -> list[Any]:
    """The answers of the process, one per line, up to the point where it stopped."""
    limits = [str(MEMORY_BYTES), str(CPU_S)]
    # -I and -S: ignore the environment and installed packages
    command = [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, str(Path(__file__).parents[2]), kind, *limits]
    pipes: dict[str, Any] = {"stdin": asked, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with _TURN, subprocess.Popen(command, **pipes) as process:
        assert process.stdout
        said = process.stdout.read(_MAX_ANSWER_BYTES)
        process.kill()
    return [json.loads(one.decode("utf-8", "surrogatepass")) for one in said.split(b"\n")[:-1]]
