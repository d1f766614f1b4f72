"""Slurm: a batch script whose array is a chain of runs, one at a time, that go on from the same checkpoint."""

from __future__ import annotations

import shlex

from worldsize.course.manifests.job import Job

_SCRIPT = """\
#!/bin/bash
{directives}

set -u
# this script runs on the first node of the job; the port differs from job to job
endpoint="$(hostname):$((20000 + SLURM_JOB_ID % 10000))"
echo "$(date -Is) run ${{SLURM_ARRAY_TASK_ID:-0}}, restart ${{SLURM_RESTART_COUNT:-0}}, on $SLURM_JOB_NODELIST"

srun --kill-on-bad-exit=1 torchrun \\
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node={processes} \\
    --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-id="$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}" \\
    {command}
code=$?

# the job is done: the rest of the chain is not needed
if [ "$code" = 0 ] && [ -n "${{SLURM_ARRAY_JOB_ID:-}}" ]; then
    scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
fi
exit "$code"
"""


def batch_script(job: Job) -> str:
    """Write the script for sbatch: a chain of `max_restarts` + 1 runs, each of which Slurm may also requeue."""
    options = {
        "job-name": job.name,
        "array": f"0-{job.max_restarts}%1",
        "requeue": None,
        "open-mode": "append",
        "output": f"{job.name}-%a.log",
        "nodes": job.num_nodes,
        "ntasks-per-node": 1,
        **({"gpus-per-node": job.gpus_per_node} if job.gpus_per_node else {}),
        "time": _duration(job.time_limit_s),
        "partition": job.queue,
        **({"switches": "1@01:00:00"} if job.topology else {}),
    }
    lines = [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in options.items()]
    return _SCRIPT.format(
        directives="\n".join(lines), processes=job.processes_per_node, command=shlex.join(job.command)
    )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"
