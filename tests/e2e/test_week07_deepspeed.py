"""Week 7's cells with DeepSpeed itself, on two real ranks: every stage of ZeRO trains what torch's DDP trains."""

import importlib.util
import re

from needs import give_up
from repository import ROOT

from autograder.authoring.scripts import parse

SCRIPT = ROOT / "weeks" / "week07_zero_and_fsdp.py"


def test_deepspeeds_stages_train_what_ddp_does(capsys):
    if importlib.util.find_spec("deepspeed") is None:
        give_up("deepspeed", "needs DeepSpeed: DS_BUILD_OPS=0 pip install -e '.[deepspeed]'")
    cells = {cell.title: cell.source for cell in parse(SCRIPT).cells if cell.kind == "code"}
    imports = cells["setup"].partition("\nPath(")[0]  # without a folder, threads and predictions
    lesson: dict = {"seed": 0}
    exec("\n".join([imports, cells["by_deepspeed"], cells["deepspeed_config"]]), lesson)
    found = re.findall(r"DeepSpeed, stage (\d): .* weights (\S+)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert [stage for stage, _ in found] == ["1", "2", "3"]
    assert max(float(difference) for _, difference in found) < 1e-5
