"""Lab 8's open checks as a student runs them: with the solution, and with the usual mistakes; and on real ranks."""

import pytest
import torch
import torch.distributed as dist
from block_by_hand import LAB, solution_source, solved
from executed import failures, lab_outputs, message
from torch.nn import functional as F

import worldsize as ws
from autograder.authoring.known_answers import read_answer, solution_cells
from autograder.authoring.scripts import parse

pytestmark = pytest.mark.slow

SOLUTION = solution_cells(LAB / "lab08.py")
CHECKS = [cell.title for cell in parse(LAB / "lab08.py").cells if cell.title.startswith("check_")] + ["all_modes"]
SIZES = {"width": 16, "num_heads": 8, "num_kv_heads": 4, "head_dim": 4, "hidden_width": 24}
VOCABULARY = 12


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab08", tmp_path_factory.mktemp("lab08"), SOLUTION)


def pictures(outputs):
    return [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]


def test_open_checks_pass_with_the_solution(completed):
    assert failures(completed) == {}
    assert len([name for name in completed if name.startswith("check_")]) == len(CHECKS) - 1
    found = pictures(completed["check_parallel_block"])
    assert len(found) == 2 and all(one.startswith("Timeline (") and "emulated" in one for one in found)


def test_the_last_cell_compares_the_modes(completed):
    (table,) = pictures(completed["all_modes"])
    rows = {line.split("  ")[0]: line.split() for line in table.splitlines()[2:]}
    assert {rows[mode][-1] for mode in ("one process", "tensor parallel", "and sequence parallel")} == {
        rows["one process"][-1]
    }
    apart = {mode: float(row[-2]) for mode, row in rows.items() if mode != "one process"}
    assert apart["tensor parallel"] == apart["and sequence parallel"] == 0 < apart["without sync_replicated"]


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("copy_forgets_backward", "check_copy_and_reduce", "add the gradients up"),
        ("copy_reduces_forward", "check_copy_and_reduce", "Forward gives x itself"),
        ("reduce_reduces_backward", "check_copy_and_reduce", "hand it on as it is"),
        ("cuts_without_adding", "check_gather_and_scatter", "do not just cut"),
        ("gathers_sequences", "check_gather_and_scatter", "the ranks must be dimension 0"),
        ("cuts_qkv_in_one", "check_shard_weights", "Cut the queries, the keys and the values apart"),
        ("deals_out_heads", "check_shard_weights", "Cut the queries, the keys and the values apart"),
        ("contiguous_is_no_copy", "check_shard_weights", "A view keeps the whole weight alive"),
        ("bias_in_the_sum", "check_parallel_mlp", "The bias comes N times into the sum"),
        ("enters_three_times", "check_parallel_attention", "Enter once with x"),
        ("norm_inside", "check_parallel_block", "Norms stand before"),
        ("no_cut_tokens", "check_parallel_block", "of the right pair"),
        ("sync_averages", "check_sync_replicated", "That is the mean"),
        ("sync_adds_up_always", "check_sync_replicated", "they are whole already"),
        ("loss_by_its_own_largest", "check_vocabulary_loss", "Compare m"),
        ("loss_takes_foreign_targets", "check_vocabulary_loss", "the target's logit"),
        ("loss_gathers_logits", "check_vocabulary_loss", "3 float32 numbers for each of 6 tokens"),
        ("loss_adds_gradients_up", "check_vocabulary_loss", "N times too much"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = " ".join(message("lab08", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check).split())
    assert said.startswith("CheckFailed") and cause in said


def whole():
    """The loss of a block and a head in one process, and the gradients by name."""
    lab, (x, head, targets) = solved(solution_source()), drawn()
    leaves = lab.Weights(*(one.requires_grad_() for one in lab.random_weights(**SIZES)))
    logits = F.linear(lab.whole_block(x, leaves, SIZES["head_dim"]), head)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.detach(), {name: one.grad for name, one in leaves._asdict().items()}


def drawn():
    generator = torch.Generator().manual_seed(0)
    x, head = torch.randn(2, 8, 16, generator=generator), torch.randn(VOCABULARY, 16, generator=generator)
    return x, head, torch.randint(VOCABULARY, (2, 8), generator=generator)


def in_parallel(source, tensors, sizes, is_cut):
    """The loss on this rank, and the gradients of norms and biases."""
    lab = solved(source)
    (x, head, targets), rank, num = tensors, dist.get_rank(), dist.get_world_size()
    shard = lab.shard_weights(lab.random_weights(**sizes), sizes["head_dim"], rank, num)
    shard = lab.Weights(*(one.requires_grad_() for one in shard))
    y = lab.parallel_block(x.chunk(num, 1)[rank] if is_cut else x, shard, sizes["head_dim"], is_cut)
    y = lab.gather_tokens(y) if is_cut else lab.copy_to_ranks(y)
    loss = lab.vocabulary_loss(F.linear(y, head.chunk(num)[rank]), targets)
    loss.backward()
    lab.sync_replicated(shard, is_cut)
    return loss.detach(), {name: shard._asdict()[name].grad for name in lab.REPLICATED}


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("how", [{"backend": "gloo", "world_size": 2}, {"cluster": "dgx-h100", "world_size": 4}])
def test_the_solution_is_one_process_on_real_and_on_emulated_ranks(how, is_cut):
    loss, gradients = whole()
    run = ws.run(in_parallel, solution_source(), drawn(), SIZES, is_cut, echo=False, **how)
    for given, by_name in run.values:
        torch.testing.assert_close(given, loss)
        for name, one in by_name.items():
            torch.testing.assert_close(one, gradients[name], rtol=1e-4, atol=1e-5)
            assert torch.equal(one, run.values[0][1][name])
