"""A real Slurm of one node in a folder of its own, for tests: no systemd, nothing outside the folder is touched.

A test takes `with slurm_node(folder) as node:`; a person takes the command line:

    eval "$(PYTHONPATH=tests python -m helpers.slurm_node start /tmp/node)"   # the shell now speaks to that node
    sinfo; sbatch --wrap "sleep 10"; squeue
    PYTHONPATH=tests python -m helpers.slurm_node restart-slurmd /tmp/node
    PYTHONPATH=tests python -m helpers.slurm_node stop /tmp/node

With `nodes`, several slurmd on this machine are nodes n1, n2, ... of one Slurm (`slurmd -N`), each with its own cores.

A node that a test started also ends when the test's process is killed; one from the command line stays.

It wants root, slurm-wlm and munge. Each node has ports, a munge socket and a munge key of its own, so several nodes can
run next to each other and next to an existing Slurm. There is no accounting, hence no sacct.

Three partitions, all on the one node: `main` (the default, no limit of time), `short` (a limit of one minute, so that
time limits can be tested) and `low` (its jobs are put back in the queue when the others want the node).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from helpers import processes

PARTITIONS = {
    "main": "Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF",
    "short": "MaxTime=1 PriorityTier=10 PreemptMode=OFF",
    "low": "MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE",
}
DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = (*DAEMONS, "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
HOST = socket.gethostname().split(".")[0]
SOCKET_LENGTH = 107  # the longest path of a Unix socket

CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={memory_per_cpu}
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobRequeue=1
KillWait=5
BatchStartTimeout=5
MinJobAge=3600
ReturnToService=2
SlurmdTimeout=20
{gpus}{nodes}
{partitions}
"""


def why_not() -> str:
    """Why a node cannot be started here, or ""."""
    if not sys.platform.startswith("linux"):
        return "a Slurm node of its own needs Linux"
    missing = [command for command in (*COMMANDS, "munge") if shutil.which(command, path=PATH) is None]
    if missing:
        return f"a Slurm node of its own needs slurm-wlm and munge: no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "a Slurm node of its own needs root"
    return ""


class SlurmNode:
    """One node: its controller, its slurmd and its munged, all known by the pid files in its folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).resolve()
        self.conf = self.folder / "slurm.conf"
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which every command speaks to this node, and to no other."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
        return {**kept, "PATH": PATH, "SLURM_CONF": str(self.conf)}

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command on this node and return its output."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def queue(self) -> dict[str, str]:
        """Every job and array task that is not over, with its state."""
        lines = self.run("squeue", "-h", "-a", "-r", "-o", "%i %T").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    @property
    def names(self) -> list[str]:
        """The names of the nodes."""
        text = self.conf.read_text() if self.conf.exists() else ""
        return re.findall(r"^NodeName=(\S+)", text, re.MULTILINE) or [HOST]

    def pid(self, daemon: str, name: str = "") -> int | None:
        """The process of a daemon, if it runs; of slurmd that of the node `name`, by default the first."""
        file = f"slurmd-{name or self.names[0]}" if daemon == "slurmd" else daemon
        try:
            pid = int((self.folder / f"{file}.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if processes.name(pid) == daemon and processes.alive(pid) else None

    def start(
        self,
        cpus: int = 2,
        partitions: Mapping[str, str] = PARTITIONS,
        memory: int = 4000,
        gpus: int = 0,
        more: str = "",
        stays: bool = False,
        nodes: int = 1,
    ) -> None:
        """Start the daemons and wait for an idle node.

        Args:
            cpus: the cores of the node as Slurm counts them; any number, whatever the machine has.
            partitions: what follows the name in slurm.conf's line of each partition.
            memory: megabytes of the node; a job that asks for none takes its cores' share.
            gpus: accelerators that Slurm hands out by number; none of them exists.
            more: further lines of slurm.conf.
            stays: whether it outlives this process.
            nodes: how many, each with these cores and this memory.
        """
        if reason := why_not():
            raise RuntimeError(reason)
        if running := [daemon for daemon in DAEMONS if self.pid(daemon)]:
            raise RuntimeError(f"{self.folder}: {', '.join(running)} runs already")
        if len(f"{self.folder}/munge.socket") > SOCKET_LENGTH or any(sign in str(self.folder) for sign in " ,#="):
            raise ValueError(f"{self.folder}: the path is too long or holds a sign that slurm.conf cannot")
        self.folder.mkdir(parents=True, exist_ok=True)
        names = [HOST] if nodes == 1 else [f"n{number}" for number in range(1, nodes + 1)]
        for each in ("state", *(f"spool-{name}" for name in names)):  # a node drained in an earlier life would stay so
            shutil.rmtree(self.folder / each, ignore_errors=True)
            (self.folder / each).mkdir()
        ctld_port, *d_ports = processes.free_ports(1 + nodes)
        parts = [f"PartitionName={name} Nodes=ALL State=UP {rest}" for name, rest in partitions.items()]
        text = CONF.format(
            folder=self.folder,
            host=HOST,
            ctld_port=ctld_port,
            memory_per_cpu=memory // cpus,
            gpus="GresTypes=gpu\n" if gpus else "",
            nodes="\n".join(
                f"NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory={memory} "
                f"{f'Gres=gpu:{gpus} ' if gpus else ''}State=UNKNOWN"
                for name, port in zip(names, d_ports, strict=True)
            ),
            partitions="\n".join(parts),
        )
        self.conf.write_text(text + more)
        devices = [self.folder / f"gpu{number}" for number in range(gpus)]
        for device in devices:
            device.unlink(missing_ok=True)
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # Slurm takes device files only; these are null
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))
        if not stays:
            # It reads until this process ends, however it ends, and then stops the daemons.
            words = [sys.executable, "-m", "helpers.slurm_node", "guard", str(self.folder)]
            modules = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
            self._guard = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, env=modules)
        try:
            self._start_munged()
            self._start("slurmctld")
            for name in names:
                self._start("slurmd", "-N", name)
            self.wait_for_node()
        except BaseException:
            self.stop()
            raise

    def _start(self, daemon: str, *words: str) -> None:
        done = subprocess.run(
            [daemon, *words], env=self.environment, capture_output=True, text=True, timeout=60, cwd=self.folder
        )
        if done.returncode:
            raise RuntimeError(f"{daemon}: {(done.stderr or done.stdout).strip()}")
        name = words[-1] if daemon == "slurmd" else ""
        processes.wait(f"{daemon} of {self.folder}", lambda: self.pid(daemon, name) is not None, 20)

    def _start_munged(self) -> None:
        key = self.folder / "munge.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(secrets.token_bytes(128))
        files = {"socket": "munge.socket", "key-file": "munge.key"}
        files |= {f"{kind}-file": f"munged.{kind}" for kind in ("pid", "log", "seed")}
        # Forced: else it refuses a folder that others may not enter, as those of pytest are.
        self._start("munged", "--force", *(f"--{name}={self.folder / file}" for name, file in files.items()))

    def wait_for_node(self, seconds: float = 30) -> None:
        """Waits until the node takes jobs."""

        def ready() -> bool:
            states = self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()
            return bool(states) and all(state in ("idle", "mixed", "allocated") for state in states)

        processes.wait(f"the node of {self.folder}", ready, seconds)

    def start_slurmd(self, name: str = "") -> None:
        """Starts slurmd after a kill and waits for the node."""
        self._start("slurmd", "-N", name or self.names[0])
        self.wait_for_node()

    def restart_controller(self, pause: float = 0.0) -> None:
        """Stops slurmctld and starts it again after `pause` seconds, in which no command is answered; jobs go on."""
        pid = self.pid("slurmctld")
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        processes.wait("the end of slurmctld", lambda: not processes.alive(pid), 30)
        time.sleep(pause)
        self._start("slurmctld")
        self.wait_for_node()

    def stop_slurmd(self, number: signal.Signals = signal.SIGTERM, name: str = "") -> None:
        """Stops slurmd and nothing else: its jobs go on."""
        if (pid := self.pid("slurmd", name)) is None:
            return
        os.kill(pid, number)
        processes.wait("the end of slurmd", lambda: not processes.alive(pid), 20)

    def restart_slurmd(self) -> None:
        """Stops slurmd and starts it again; jobs go on."""
        self.stop_slurmd()
        self.start_slurmd()

    def crash(self, name: str = "") -> None:
        """What a power cut does to a node: slurmd and all processes of its jobs are gone, and the node is DOWN.

        The controller would see it by itself after SlurmdTimeout seconds and more; here it is told at once. It puts
        the jobs back in the queue; `start_slurmd` brings the node back.
        """
        self.stop_slurmd(signal.SIGKILL, name)
        self._kill_job_processes(name)
        self.run("scontrol", "update", f"NodeName={name or self.names[0]}", "State=DOWN", "Reason=crash")

    def job_processes(self, name: str = "") -> list[int]:
        """The processes that jobs, of the node `name` where given, left or still run, slurmstepd among them."""
        mine = f"SLURM_CONF={self.conf}".encode()
        found = []
        for each in Path("/proc").iterdir():
            if not each.name.isdigit() or int(each.name) == os.getpid():
                continue
            try:
                variables = (each / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            in_job = any(variable.startswith(b"SLURM_JOB_ID=") for variable in variables)
            if name and in_job and f"SLURMD_NODENAME={name}".encode() not in variables:
                continue
            if name and not in_job:  # slurmstepd has nothing of its node but the children
                continue
            pid = int(each.name)
            if mine in variables and (in_job or processes.name(pid) == "slurmstepd") and processes.alive(pid):
                found.append(pid)
        return found

    def _kill_job_processes(self, name: str = "") -> None:
        # Again until none is left, since they start others.
        def none_left() -> bool:
            found = self.job_processes(name)
            steps = [pid for pid in map(processes.parent, found) if processes.name(pid) == "slurmstepd"]
            processes.kill([*steps, *found], signal.SIGKILL)
            return not self.job_processes(name)

        processes.wait("the end of the jobs' processes", none_left, 20)

    def cancel_all(self, seconds: float = 20) -> None:
        """Cancels every job and waits until none is left; the running ones are killed without grace."""
        jobs = self.run("squeue", "-h", "-a", "-o", "%A", check=False).split()
        if not jobs:
            return
        self.run("scancel", *jobs, check=False)
        processes.kill([pid for pid in self.job_processes() if processes.name(pid) != "slurmstepd"], signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            processes.wait("the end of all jobs", lambda: not self.queue(), seconds)

    def stop(self) -> None:
        """Cancels all jobs and stops the daemons; no process is left."""
        if self.pid("slurmctld") is not None and self.pid("slurmd") is not None:
            self.cancel_all()
        slurmds = [("slurmd", name) for name in self.names]
        for daemon, name in (*slurmds, ("slurmctld", ""), ("munged", "")):
            if (pid := self.pid(daemon, name)) is None:
                continue
            processes.kill([pid], signal.SIGTERM)
            try:
                processes.wait(daemon, lambda pid=pid: not processes.alive(pid), 15)
            except TimeoutError:
                processes.kill([pid], signal.SIGKILL)
        self._kill_job_processes()
        if self._guard is not None:
            self._guard.communicate()
            self._guard = None


@contextlib.contextmanager
def slurm_node(
    folder: Path | str,
    cpus: int = 2,
    partitions: Mapping[str, str] = PARTITIONS,
    memory: int = 4000,
    gpus: int = 0,
    more: str = "",
    nodes: int = 1,
) -> Iterator[SlurmNode]:
    """A node for the length of a with-block; SLURM_CONF names it and PATH finds it meanwhile.

    The variables of a Slurm job in which the tests themselves may run are taken away meanwhile.
    """
    node = SlurmNode(folder)
    before = dict(os.environ)
    node.start(cpus, partitions, memory, gpus, more, nodes=nodes)
    try:
        wanted = node.environment
        for key in before.keys() - wanted.keys():
            del os.environ[key]
        os.environ.update(wanted)
        yield node
    finally:
        try:
            node.stop()
        finally:
            os.environ.clear()
            os.environ.update(before)


def main(words: list[str]) -> int:
    """The command line: start, stop or restart-slurmd, and a folder; guard is for start itself."""
    if len(words) != 2 or words[0] not in ("start", "stop", "restart-slurmd", "guard"):
        print("usage: PYTHONPATH=tests python -m helpers.slurm_node start|stop|restart-slurmd FOLDER", file=sys.stderr)
        return 2
    node = SlurmNode(words[1])
    try:
        if words[0] == "start":
            node.start(stays=True)
            print(f"export SLURM_CONF={node.conf}")
        elif words[0] == "restart-slurmd":
            node.restart_slurmd()
        else:
            if words[0] == "guard":
                sys.stdin.read()
            node.stop()
    except (RuntimeError, ValueError, TimeoutError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
