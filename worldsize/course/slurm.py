"""A real Slurm on this machine: its controller and a daemon for each of several nodes, all in one folder.

Every process runs as the user who starts it, listens on free ports only, and ends with the context. The nodes are
names: they share this machine's cores and files. Slurm counts the cores that it gives a job, and binds no process to
them.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from worldsize.course.ports import free_ports
from worldsize.course.programs import find
from worldsize.launch.protocol.process import die_with_parent

PROGRAMS = {
    "munged": "munge",
    "mungekey": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}
REQUEUE_S = 5  # how long a requeued job waits; Slurm's default is 120
_STARTS_WITHIN_S = 30
_CONFIG = """\
ClusterName=worldsize
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# a requeued job waits until the credentials of its first start have expired
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_s}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
# a node may have more cores than this machine
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
FirstJobId={first_job_id}
JobRequeue=1
KillWait=2
ReturnToService=2
SlurmdTimeout=10
MpiDefault=none
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Return the missing Debian packages without which Slurm cannot run here."""
    return sorted({package for program, package in PROGRAMS.items() if not find(program)})


class SlurmCluster:
    """Slurm with `num_nodes` nodes named n1, n2, ... of `cores_per_node` cores each, in its own folder.

    Raises:
        RuntimeError: Slurm or munge is not installed, or did not start; the message has the end of its log.
    """

    def __init__(
        self, folder: Path | str, num_nodes: int = 2, partition: str = "research", cores_per_node: int = 1
    ) -> None:
        if lacking := missing():
            raise RuntimeError(f"Slurm cannot run here: apt-get install {' '.join(lacking)} (Debian and Ubuntu)")
        self.folder = Path(folder).resolve()
        self.node_names = [f"n{number}" for number in range(1, num_nodes + 1)]
        self._partition = partition
        self._cores_per_node = cores_per_node
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SlurmCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def submit(self, script: Path | str) -> int:
        """Submit a script with `sbatch`, in the script's own folder; return the number of the job."""
        path = Path(script).resolve()
        return int(self.run("sbatch", "--parsable", f"--chdir={path.parent}", str(path)).strip())

    def run(self, *command: str) -> str:
        """Run a Slurm command, and return what it prints.

        Raises:
            RuntimeError: the command failed; the message is its own.
        """
        done = subprocess.run(command, env=self._env(), capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def queue(self, job_id: int) -> list[str]:
        """List the queued and running tasks of a job, a line each: number, state, nodes or a reason."""
        try:
            listed = self.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%i %T %R")
        except RuntimeError as error:
            if "Invalid job id" in str(error):  # Slurm forgets a job some minutes after its end
                return []
            raise
        return [line.strip() for line in listed.splitlines()]

    def wait(self, job_id: int, within_s: float = 60) -> None:
        """Wait until no task of a job is queued or running.

        Raises:
            TimeoutError: some still are; the message lists them.
        """
        if not _until(lambda: not self.queue(job_id), within_s):
            raise TimeoutError(f"job {job_id} is not done after {within_s} s: {'; '.join(self.queue(job_id))}")

    def close(self) -> None:
        """End all processes of this Slurm, its jobs' first."""
        if len(self._started) > 1:
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                self.run("scancel", f"--user={getpass.getuser()}")
                _until(lambda: not self.run("squeue", "--noheader").strip(), within_s=10)
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._started.clear()

    def _start(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in self.node_names)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        key, munge = self.folder / "munge.key", self.folder / "munge.socket"
        key.unlink(missing_ok=True)
        subprocess.run([find("mungekey"), "--create", f"--keyfile={key}"], check=True, capture_output=True)
        (self.folder / "slurm.conf").write_text(self._config())
        paths = {
            "key-file": key,
            "socket": munge,
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "seed",
        }
        flags = [f"--{flag}={self.folder / path}" for flag, path in paths.items()]
        self._spawn("munged", "--foreground", "--force", "--num-threads=2", *flags)
        self._await("munged", munge.exists)
        self._spawn("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        self._await("slurmctld", lambda: "UP" in self.run("scontrol", "ping"))
        for node in self.node_names:
            self._spawn("slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf"))
        self._await("slurmd", lambda: self._states() == ["idle"] * len(self.node_names))

    def _config(self) -> str:
        host, ports = socket.gethostname().split(".")[0], free_ports(len(self.node_names) + 1)
        cores = self._cores_per_node
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores} State=UNKNOWN"
            for node, port in zip(self.node_names, ports[1:], strict=True)
        ]
        return _CONFIG.format(
            host=host,
            user=getpass.getuser(),
            folder=self.folder,
            controller_port=ports[0],
            requeue_s=REQUEUE_S,
            first_job_id=1 + os.getpid() % 9000,  # scripts derive a port from it
            nodes="\n".join(nodes),
            partition=self._partition,
        )

    def _states(self) -> list[str]:
        return self.run("sinfo", "--noheader", "--Node", "--format=%T").split()

    def _spawn(self, program: str, *flags: str) -> None:
        with open(self.folder / f"{program}.out", "ab") as output:
            command = [find(program), *flags]
            self._started.append(
                subprocess.Popen(
                    command,
                    env=self._env(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.folder,
                    preexec_fn=_end_with_parent,
                )
            )

    def _await(self, program: str, is_ready: Callable[[], bool]) -> None:
        def is_up() -> bool:
            with contextlib.suppress(RuntimeError):  # a client that does not reach the controller yet
                return is_ready()
            return False

        if not _until(is_up, _STARTS_WITHIN_S) or self._started[-1].poll() is not None:
            lines = (self.folder / f"{program}.out").read_text(errors="replace").splitlines()
            raise RuntimeError(f"{program} did not start: {' '.join(lines[-5:]) or 'it printed nothing'}")

    def _env(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}


_end_with_parent = partial(die_with_parent, signal_number=signal.SIGTERM)


def _until(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait for the condition; return whether it held in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.2)
    return True
