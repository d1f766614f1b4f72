"""The training of a transformer on the text: what is handed out, what the flags name, a job that goes on elsewhere."""

import torch

from worldsize import bench
from worldsize.bench import LocalSamples, Samples, SampleServer, TextBatches, TextTask, Trial
from worldsize.bench.program import RestartPolicy, TrainingSpec

TASK = TextTask(num_steps=3, batch_size=4, length=16, layers=1)


def test_sequences_are_those_of_the_seed_and_targets_follow_their_tokens() -> None:
    with SampleServer(TASK, 7, "/tmp") as server:
        first, second = Samples(server.address, 0), Samples(server.address, 1)
        for step in range(TASK.num_steps):
            tokens, targets = TextBatches(7, 4, 16).batch(step)
            got = first.take(step, 0, 3), second.take(step, 3, 4)
            assert torch.equal(torch.cat([one[0] for one in got]), tokens)
            assert torch.equal(torch.cat([one[1] for one in got]), targets)
            assert torch.equal(tokens[:, 1:], targets[:, :-1]) and tokens.dtype == torch.int64
        nothing = first.take(0, 2, 2)
        assert [tuple(one.shape) for one in nothing] == [(0, 16), (0, 16)]
        assert server.record.missed(TASK) == []


def test_each_seed_has_other_tokens_for_the_same_bytes() -> None:
    counts = [torch.bincount(TextBatches(seed, 64, 64).batch(0)[0].flatten(), minlength=256) for seed in (1, 2)]
    assert counts[0].argmax() != counts[1].argmax()  # the blank, which is the most frequent byte


def test_without_a_harness_sequences_are_drawn_here(monkeypatch) -> None:
    monkeypatch.delenv("WORLDSIZE_FEED", raising=False)
    samples = bench.open_text(batch_size=4, length=16, seed=3)
    assert isinstance(samples, LocalSamples)
    assert torch.equal(samples.take(1, 1, 3)[0], TextBatches(3, 4, 16).batch(1)[0][1:3])


def test_the_flags_name_the_task_and_its_shape_the_model() -> None:
    task = TextTask(num_steps=2, layers=3, width=256)
    assert {"--steps=2", "--batch=8", "--length=32", "--model=small", "--layers=3", "--width=256"} <= set(task.flags)
    assert (task.shape.num_layers, task.shape.width, task.shape.hidden_width) == (3, 256, 896)
    assert task.gradient_bytes == 4 * sum(one.numel() for one in task.model().parameters())


def test_training_lowers_the_loss_and_does_not_forgive_a_gradient_of_another_scale() -> None:
    task = TextTask(num_steps=8)
    batches = task.batches(5)
    alone = bench.train_alone(task, batches)
    assert alone.losses[-1] < 0.7 * alone.losses[0]
    model = task.model()
    optimizer = task.optimizer(model)
    for step in range(task.num_steps):
        tokens, targets = batches.batch(step)
        (2 * torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())).backward()
        optimizer.step()
        optimizer.zero_grad()
    record = bench.TrainingRecord(weights=torch.cat([one.detach().flatten() for one in model.parameters()]))
    assert bench.weights_error(Trial(bench.TrainingResult(), record, batches), task) > 0.02


def test_a_job_begins_anew_on_other_ranks_with_its_checkpoints_whole(tmp_path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import argparse, os, sys\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--checkpoints')\n"
        "folder = parser.parse_known_args()[0].checkpoints\n"
        "size = int(os.environ['WORLD_SIZE'])\n"
        "if size == 2:\n"
        "    open(f'{folder}/saved', 'w').write('whole')\n"
        "    sys.exit(1)\n"
        "print('{\"step\": %d, \"loss\": %d}' % (size, len(open(f'{folder}/saved').read())), flush=True)\n"
    )
    spec = TrainingSpec(TASK, 2, checkpoint_every=1)
    for is_cut, length in ((False, 5), (True, 2)):
        policy = RestartPolicy(0, is_begun_anew=True, is_cut=is_cut, next_world_sizes=[1])
        (line,) = bench.attempt(bench.ScriptHere(program), spec, 0, policy).result.lines
        assert (line.step, line.loss) == (1, length)
