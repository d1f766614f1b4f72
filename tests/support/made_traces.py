"""Traces as torch.profiler writes them, made of chosen activities."""

import json

STEP_US = 1000.0


class Trace:
    """A trace of steps of a millisecond each on a GPU, in microseconds, as torch 2.13 writes it."""

    def __init__(self, rank=0, num_steps=2, ahead_us=0.0):
        self.rank, self.num_steps, self.ahead_us, self.records = rank, num_steps, ahead_us, []
        for step in range(num_steps):
            self.add("user_annotation", f"ProfilerStep#{step + 7}", step * STEP_US, STEP_US)

    def add(self, cat, name, start_us, length_us, **args):
        times = {"ts": 5e6 + self.ahead_us + start_us, "dur": length_us}
        self.records.append({"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 1, **times, "args": args})
        return self

    def kernel(self, start_us, length_us, launched_us=None, name="gemm", cat="kernel", stream=7, **args):
        """One on the GPU in each step, and its launch, a step before it unless another time is given."""
        for step in range(self.num_steps):
            at_us, number = step * STEP_US, len(self.records)
            early_us = at_us - STEP_US if launched_us is None else at_us + launched_us
            self.add("cuda_runtime", "cudaLaunchKernel", early_us, 5, correlation=number)
            self.add(cat, name, at_us + start_us, length_us, correlation=number, stream=stream, **args)
        return self

    def all_reduce(self, start_us, length_us, count=250_000, ranks="[0, 1]"):
        kernel = "ncclDevKernel_AllReduce_Sum_f32"
        return self.collective(start_us, length_us, "allreduce", kernel, count, ranks=ranks)

    def collective(self, start_us, length_us, name, kernel, count=1000, ranks="[0, 1]", **more):
        args = {"Collective name": name, "In msg nelems": count, "Out msg nelems": count, "dtype": "Float"}
        group = {"Process Group Name": "0", "Process Group Ranks": ranks}
        return self.kernel(start_us, length_us, None, kernel, "kernel", 20, **args, **group, **more)

    def host(self, start_us, length_us, name, cat="cpu_op"):
        for step in range(self.num_steps):
            self.add(cat, name, step * STEP_US + start_us, length_us)
        return self

    def written(self, folder, ranks=2):
        path = folder / f"worker{self.rank}.pt.trace.json"
        info = {"rank": self.rank, "world_size": ranks}
        path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": self.records}))
        return path


def ends(trace):
    """The same with a kernel at both ends of the step, so that a step lasts a millisecond."""
    return trace.kernel(0, 1).kernel(999, 1)
