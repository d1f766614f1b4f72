"""Traces as torch.profiler writes them, made of chosen activities."""

import json

STEP_US = 1000.0


class Trace:
    """A trace of steps of a millisecond each, unless said otherwise, in microseconds, as torch 2.13 writes it."""

    def __init__(self, rank=0, num_steps=2, ahead_us=0.0, step_us=STEP_US, machine=""):
        self.rank, self.num_steps, self.ahead_us, self.step_us, self.machine = (
            rank,
            num_steps,
            ahead_us,
            step_us,
            machine,
        )
        self.records = []
        for step in range(num_steps):
            self.add("user_annotation", f"ProfilerStep#{step + 7}", step * step_us, step_us)

    def add(self, cat, name, start_us, length_us, **args):
        times = {"ts": 5e6 + self.ahead_us + start_us, "dur": length_us}
        self.records.append({"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 1, **times, "args": args})
        return self

    def kernel(self, start_us, length_us, launched_us=None, name="gemm", cat="kernel", stream=7, **args):
        """One on the GPU in each step, and its launch, a step before it unless another time is given."""
        for step in range(self.num_steps):
            at_us, number = step * self.step_us, len(self.records)
            early_us = at_us - self.step_us if launched_us is None else at_us + launched_us
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
            self.add(cat, name, step * self.step_us + start_us, length_us)
        return self

    def gloo(self, start_us, length_us, name="gloo:all_reduce"):
        return self.host(start_us, length_us, name, "user_annotation")

    def written(self, folder, ranks=2, groups=()):
        """The file, of a rank in the group of all ranks and in others of these ranks."""
        path = folder / f"worker{self.rank}.pt.trace.json"
        config = [
            {"pg_name": str(name), "backend_config": "cpu:gloo,cuda:nccl", "ranks": list(members)}
            for name, members in enumerate((range(ranks), *groups))
        ]
        info = {"rank": self.rank, "world_size": ranks, "pg_config": config}
        whole = {"schemaVersion": 1, "host_name": self.machine, "distributedInfo": info, "traceEvents": self.records}
        path.write_text(json.dumps(whole))
        return path


def ends(trace):
    """The same with a kernel at both ends of the step, so that this is as long as it says."""
    return trace.kernel(0, 1).kernel(trace.step_us - 1, 1)
