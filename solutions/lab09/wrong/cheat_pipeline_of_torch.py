# score: 20
# hint: are not allowed here
# The stages are run by torch.

# %% run_schedule
def run_schedule(schedule, pipeline, micro_batches):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, num_targets = dist.get_rank(), sum(targets.numel() for _, targets in micro_batches)
    stage = PipelineStage(pipeline.stages[rank], rank, pipeline.num_stages, torch.device("cpu"))
    runner = Schedule1F1B(
        stage,
        n_microbatches=len(micro_batches),
        loss_fn=lambda output, targets: pipeline.sum_of_losses(output, targets) / num_targets,
        scale_grads=False,
    )
    losses = []
    inputs = torch.cat([one for one, _ in micro_batches])
    targets = torch.cat([one for _, one in micro_batches])
    if rank == 0:
        runner.step(inputs)
    else:
        runner.step(target=targets, losses=losses)
    return float(sum(losses))
