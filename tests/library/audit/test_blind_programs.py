"""Programs whose authors had not seen the rules: each fault is named first, and right programs draw no word."""

import os
import re
import runpy
from pathlib import Path

import pytest
import torch.distributed as dist

import worldsize as ws

pytestmark = pytest.mark.slow
PROGRAMS = Path(__file__).parent / "programs"
KINDS = {
    "01a_overlapped_buckets": "race",
    "01b_prefetched_activations": "race",
    "02a_last_handle": "not waited for",
    "02b_class_weights": "not waited for",
    "03a_pretrained_backbone": "different start",
    "03b_sharded_optimizer": "weights differ",
    "04a_loss_method": "past DDP",
    "04b_gradual_unfreezing": "not in DDP's list",
    "05a_average_after_backward": "reduced twice",
    "05b_flat_bucket": "sum for mean",
    "06a_optimizer_first": "not the model's",
    "06b_new_head": "in no optimizer",
    "07a_plateau": "settings differ",
    "07b_decay_by_tokens": "settings differ",
    "08a_shuffled_loader": "same batch",
    "08b_sampler_from_env": "same batch",
    "09a_three_epochs": "same order",
    "09b_accuracy_of_test_set": "counted twice",
    "10a_dropout_regulariser": "equal draws",
    "10b_tensor_parallel_dropout": "unequal draws",
    "11a_global_batch_mean": "outside autograd",
    "11b_contrastive_pairs": "copy without gradient",
    "12a_reduce_in_backward": "paired by luck",
    "13a_imported_weights": "not contiguous",
    "13b_scattered_sequences": "not contiguous",
    "14a_masked_mean": "not finite",
    "14b_metric_learning": "not finite",
    "15a_scaler_and_clip": "clipped while scaled",
    "15b_sharded_norm": "norm of shards",
    "16a_instruction_tuning": "mean of means",
    "16b_shards_of_unequal_size": "mean of means",
    "17a_batch_norm": "buffers differ",
    "17b_observation_normaliser": "buffers differ",
    "18a_cheap_checkpointing": "recomputed differently",
    "18b_stochastic_depth": "recomputed differently",
    "19a_export_of_shards": "saved in part",
    "19b_second_stage": "loaded nothing",
    "20a_row_parallel_bias": "bias summed",
    "20b_tied_stages": "same weights trained apart",
    "21a_best_weights": "loaded apart",
    "21b_spike_guard": "step skipped",
    "22a_features_for_the_plot": "never a gradient",
    "22b_warm_up": "changes nothing",
    "24a_restart_after_failure": "not resumed",
    "24b_resume_with_decay": "not resumed",
}


def play(path):
    """Run a script on this rank, whose process group is there already."""
    os.environ["OMP_NUM_THREADS"] = "1"
    dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None
    runpy.run_path(path, run_name="__main__")


def audit_of(path):
    num_ranks = re.search(r"^RANKS: (\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert num_ranks, "no line with the number of ranks"
    return ws.run(play, str(path), world_size=int(num_ranks[1]), audit=True, echo=False).audit


@pytest.mark.parametrize(("name", "kind"), KINDS.items(), ids=KINDS)
def test_a_fault_of_a_stranger_is_named_first(name, kind):
    audit = audit_of(PROGRAMS / "faults" / f"{name}.py")
    assert not audit.failures, audit.failures[0]
    assert [finding.kind for finding in audit.findings[:1]] == [kind], audit


@pytest.mark.parametrize("path", sorted((PROGRAMS / "right").glob("*.py")), ids=lambda path: path.stem)
def test_a_right_program_of_a_stranger_draws_no_word(path):
    audit = audit_of(path)
    assert not audit.failures, audit.failures[0]
    assert audit.findings == [], audit


def test_every_faulty_program_is_run():
    assert {path.stem for path in (PROGRAMS / "faults").glob("*.py")} == set(KINDS)
