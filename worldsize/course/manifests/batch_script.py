"""Slurm: a batch script whose array is a chain of runs, one at a time, that go on from the same checkpoint."""

from __future__ import annotations

import shlex

from worldsize.course.manifests.job import Job

_SCRIPT = """\
#!/bin/bash
{directives}
# Where jobs share nodes, ask for this job's part of each instead of --exclusive and --mem=0, which take all of it:
# --cpus-per-task={cores} --mem={memory_gb}G, for example.

set -u
# this script runs on the first node of the job; the port differs from job to job
endpoint="$(hostname):$((20000 + SLURM_JOB_ID % 10000))"
echo "$(date -Is) run ${{SLURM_ARRAY_TASK_ID:-0}}, restart ${{SLURM_RESTART_COUNT:-0}}, on $SLURM_JOB_NODELIST"

# --signal sends USR1 to every process that srun starts. It would end torchrun, so that is made to ignore it. A program
# that handles it saves, and goes on or exits with a code other than 0; the ranks may hear it in different steps.
srun --kill-on-bad-exit=1 bash -c 'trap "" USR1; exec "$@"' bash torchrun \\
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
        # without these the one task of a node gets one core, and that core's part of the memory
        "exclusive": None,
        "mem": 0,
        "time": _duration(job.time_limit_s),
        "signal": f"USR1@{int(job.save_time_s)}",  # Slurm may send it up to 60 s earlier
        "partition": job.queue,
        **({"switches": "1@01:00:00"} if job.topology else {}),
    }
    lines = [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in options.items()]
    return _SCRIPT.format(
        directives="\n".join(lines),
        cores=8 * job.processes_per_node,
        memory_gb=64 * job.processes_per_node,
        processes=job.processes_per_node,
        command=shlex.join(job.command),
    )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"
