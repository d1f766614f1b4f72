"""A fictional result of Project 1: a program measured on one and two ranks, in the harness's own format."""

from worldsize.bench import Machine, Result, Task, Timing
from worldsize.bench.result_file import points


def made_result() -> Result:
    """The result, of a machine with two cores; two ranks take half of the time."""
    machine = Machine(
        processor="a processor",
        num_cores=2,
        memory_bytes=8 * 10**9,
        system="Linux",
        clock_mhz=3000,
        gpus=[],
        gpu_clocks_mhz=[],
        matrix_flops_per_s=1e11,
        python="3.11",
        torch="2.13",
        cuda="",
        nccl="",
        worldsize="0.1",
    )
    common = {"scaling": "strong", "is_synchronised": True, "kind": "real", "backend": "gloo", "batch_size": 128}
    timings = [
        Timing(world_size=size, repeat=0, num_timed_steps=10, window_s=1 / size, weights_error=1e-6, **common)
        for size in (1, 2)
    ]
    return Result(
        program_sha256="a" * 64,
        measured_at="2026-11-22T10:00:00+00:00",
        machine=machine,
        task=Task(),
        num_warmup_steps=4,
        num_threads=1,
        cluster="classroom",
        timings=timings,
        points=points(timings),
    )
