"""A design is read from its file, or refused with a line for every mistake in it."""

import pytest

from worldsize import capstone, hardware

GOOD = capstone.EXAMPLES / "ten_thousand_h100.toml"


def test_a_design_is_a_model_a_cluster_and_a_plan():
    design = capstone.load(GOOD)
    assert design.shape.num_parameters == pytest.approx(387e9, rel=0.01)
    assert design.cluster.world_size == 10_000 and design.cluster.gpu is hardware.H100
    assert design.cluster.shared_storage.total_write_bytes_per_s == 500e9
    assert design.layout.num_micro_batches == 20 and design.layout.mesh == {"pp": 10, "dp": 125, "cp": 1, "tp": 8}
    assert design.checkpoint_bytes == 14 * design.shape.num_parameters
    assert design.num_steps == pytest.approx(8e12 / (2500 * 8192))


def test_an_oversubscribed_level_is_in_the_network_that_messages_cross():
    network = capstone.changed(capstone.load(GOOD), network__levels__1__num_up=16).cluster.network
    assert [level.oversubscription for level in network.levels] == [1.0, 2.0, 1.0]


MISTAKES = {
    "num_nodes = 1250": ("num_nodes = 0", "nodes.num_nodes: 0: input should be greater than or equal to 1"),
    "zero_stage = 1": ("zero_stage = 4", "plan.zero_stage: 4: input should be 0, 1, 2 or 3"),
    "dp = 125": ("dpp = 125", "plan.dpp: there is no such key"),
    "tp = 8": ('tp = "eight"', "plan.tp: 'eight': input should be a number, without quotes"),
    "num_kept = 10": ("", "checkpoint.num_kept: this key is missing"),
    'switch = "quantum-2"': ('switch = "quantum-9"', "no switch is called 'quantum-9'; known: quantum-2"),
    'cluster = "h100-ndr"': ('cluster = "h100-ndf"', "no cluster is called 'h100-ndf'; did you mean 'h100-ndr'?"),
    'shape = "llama-3-405b"': ('shape = "llama-4"', "no shape is called 'llama-4'"),
    "num_layers = 120": ("num_heads = 7", "cannot be split evenly into 7 heads"),
    "num_nodes = 256": (
        "num_nodes = 48",
        "a spine has 48 nodes, and a leaf below it has 32: each level needs a multiple",
    ),
    "[budget]": ("[budget", "expected ']'"),
    "bytes_per_token = 4": ("bytes_per_token = 1000000000", "bytes_per_token: 1000000000: input should be less"),
    "micro_batch = 1": (f"micro_batch = {10**400}", "00...: input should be less than 1e+15"),
    "num_tokens = 8e12": ("num_tokens = 8e300", "data.num_tokens: 8e+300: input should be less than 1e+30"),
    "pp = 10": ("pp = true", "plan.pp: True: input should be a number, without quotes"),
    "power_w = 18e6": ('power_w = "18e6"', "site.power_w: '18e6': input should be a number, without quotes"),
    "restart_s = 600": ("restart_s = inf", "failures.restart_s: inf: input should be less than 1e+30"),
    "pue = 1.2": ("pue = 120", "site.pue: 120: input should be less than or equal to 10"),
}


@pytest.mark.parametrize("right", MISTAKES)
def test_a_mistake_is_named_with_its_key(right, tmp_path):
    wrong, sentence = MISTAKES[right]
    text = GOOD.read_text()
    assert right in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(right, wrong, 1))
    with pytest.raises(ValueError, match=r"mine\.toml: ") as raised:
        capstone.load(path)
    assert sentence.lower() in str(raised.value).lower()


def test_a_word_in_place_of_a_table_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    cut = GOOD.read_text().index("[plan]"), GOOD.read_text().index("[software]")
    path.write_text('plan = "dp125"\n' + GOOD.read_text()[: cut[0]] + GOOD.read_text()[cut[1] :])
    with pytest.raises(ValueError, match="plan: 'dp125': input should be a table"):
        capstone.load(path)


def test_a_file_of_notepad_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.read_text(), encoding="utf-8-sig", newline="\r\n")
    assert capstone.load(path) == capstone.load(GOOD)


def test_all_mistakes_are_named_at_once(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.read_text().replace("dp = 125", "dpp = 125"))
    with pytest.raises(ValueError, match="no such key") as raised:
        capstone.load(path)
    assert len(str(raised.value).splitlines()) == 2  # dp is missing, and there is no dpp


def test_a_design_without_a_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        capstone.load(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="no design is called 'mine'; known: bloom_176b, gpt_175b"):
        capstone.example("mine")


def test_a_change_is_checked_like_a_file():
    with pytest.raises(ValueError, match=r"plan\.xp: there is no such key"):
        capstone.changed(capstone.load(GOOD), plan__xp=1)


UNKNOWN = {
    "prices__gpu_hour_usd": "; did you mean 'usd_per_gpu_hour'? Known: usd_per_gpu_hour, usd_per_kwh",
    "plan__tensor_tp": "; known: dp, tp, pp",
    "network__levels__0__num_ups": "; did you mean 'num_up'?",  # in a list of tables, which need not be there
    "budgett": "; did you mean 'budget'?",
}


@pytest.mark.parametrize("key", UNKNOWN)
def test_a_key_that_there_is_not_is_answered_by_the_nearest(key):
    with pytest.raises(ValueError, match="there is no such key") as raised:
        capstone.changed(capstone.load(GOOD), **{key: 3})
    assert f"{key.replace('__', '.')}: there is no such key{UNKNOWN[key]}" in str(raised.value)


def test_a_design_is_read_from_text_as_from_a_file():
    path = capstone.EXAMPLES / "ten_thousand_h100.toml"
    assert capstone.loads(path.read_text()) == capstone.load(path)
    with pytest.raises(ValueError, match=r"^Expected '='"):
        capstone.loads("a design")
    with pytest.raises(ValueError, match=r"^model: this key is missing"):
        capstone.loads('name = "empty"')
