"""Every week can be read in a notebook, and none of them solves its own lab."""

from pathlib import Path

import pytest

from autograder.authoring.scripts import read_week

WEEKS = {path.name[:6]: path for path in sorted(Path(__file__).parents[2].glob("weeks/week*.py"))}
# what a lab asks for, and its week therefore does without
ASKED = {
    "week01": ("rank_batches", "broadcast_model", "average_gradients", "synchronise_buffers", "def train("),
    "week02": ("def exchange", "ring_reduce_scatter", "ring_all_gather", "ring_all_reduce", "hierarchical_all_reduce"),
    "week03": (
        *("broadcast_state", "average_one_by_one", "average_flat", "make_buckets", "class DataParallel", "def finish"),
        *("split(", "dist.broadcast"),
    ),
    "week04": ("run_worker", "run_server", "may_start", "lars_step", "lamb_step", "staleness_bound", "steps_done"),
    "week05": (
        *("def top_k", "top_k_hook", "def orthogonalise", "def low_rank", "def power_hook"),
        *(".topk(", "linalg.qr", "state.memory", "state.q"),
    ),
    "week06": (
        *("class LossScaler", "def checkpointed", "choose_checkpoints", "autograd.Function", "rng_state"),
        *("isinf", "found_inf", "CheckpointFunction"),
    ),
    "week07": (
        *("def shard(", "def unshard", "def gather(", "def free(", "def reduce_gradients", "def adam_step"),
        *("class FullyShard", "class Prefetching", "def clip_gradients", "clip_grad_norm", "exp_avg", "F.pad("),
    ),
    "week08": (
        *("copy_to_ranks", "reduce_from_ranks", "gather_tokens", "reduce_scatter_tokens", "def shard_weights"),
        *("parallel_mlp", "parallel_attention", "parallel_block", "sync_replicated", "vocabulary_loss"),
        *("autograd.Function", "reduce_scatter_tensor", "all_gather_into_tensor", "masked_fill"),
    ),
    "week09": (
        *("def gpipe", "def one_f_one_b", "def interleaved", "def balance", "def run_schedule"),
        *("def find_circle", "def shortest"),
        *("dist.isend", "dist.irecv", "P2POp"),
        *("min(p - ", "num_stages - 1 - rank", "num_stages - rank - 1", "num_stages - stage"),
    ),
    "week10": (
        *(
            "def groups",
            "def arrange",
            "def gradients(",
            "def clip",
            "def work_s",
            "def tp_s(",
            "def pp_s(",
            "def dp_s(",
        ),
        *("def step_s", "def bubble_fraction", "def held_bytes", "def choose", "def predict(", "clip_grad_norm"),
        *("new_group", "published_runs", "layer_flops", "operators"),
    ),
    "week11": (
        *("def terms", "def find_bottleneck", "def what_if", "def read_ahead", "def save_aside", "def accumulate"),
        *("def cut_into_buckets", "operations(", "paid_s", "ThreadPool", "torch.save"),
    ),
    "week12": (
        *("def train(", "def main(", "rng_state", "signal.signal", "ENOSPC", "disk_usage", "def load_newest"),
        *("def recover", "def restore", "def watch", "load_state_dict("),
    ),
    "week13": (
        *("def train_on_worker", "def trainer", "class Member", "def population(member", "def cluster_manifest"),
        *("tune.Tuner", "tune.report", "ray.train.report", "get_checkpoint", "from_checkpoint"),
        *("PopulationBasedTraining(", "enableInTreeAutoscaling"),
        *("def fused_sum", "class DistributedOptimizer", "def run_elastic", "def read_timeline", "HOROVOD_", "NCCL_"),
    ),
    "week14": ("def train(", "[programs]", "programs.py"),
    "week15": ("def sketch", "def first_difference", "def name_fault", "def same_training"),
}
every_week = pytest.mark.parametrize("week", WEEKS)


@every_week
def test_cells_are_short(week):
    cells = [cell for cell in read_week(WEEKS[week]).cells if cell.kind == "code"]
    assert cells and [cell.id for cell in cells if len(cell.source.splitlines()) > 25] == []


@every_week
def test_lines_of_text_are_short(week):
    assert [line for line in WEEKS[week].read_text(encoding="utf-8").splitlines() if len(line) > 120] == []


@every_week
def test_a_week_does_not_solve_its_lab(week):
    text = WEEKS[week].read_text(encoding="utf-8")
    assert [name for name in ASKED[week] if name in text] == []


def test_week_3_notes_a_ready_gradient_once_and_sends_nothing_then():
    assert WEEKS["week03"].read_text(encoding="utf-8").count("register_post_accumulate_grad_hook") == 1
