"""Kill processes of a run at random moments, resume it, and compare it bit for bit with a run that nobody disturbed.

python benchmarks/kills.py --kills 50 --out results/kills.json

Two settings: two processes of one node, and two nodes of one process, which meet on the loopback address. A kill is a SIGKILL
to rank 0 or to rank 1, with or without its launcher. The other process must then end by itself: with a sentence, or, where it
had not met the other yet, after its timeout. The run must then go on from its last checkpoint with --resume.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import lightning_fabric  # noqa: F401

import idensenet.commands.train  # noqa: F401 - so that copies of this process need not
from idensenet import cli

TRAIN = ["train", "toy-idensenet", "--data.name", "moons", "--model.blocks", "[1]", "--train.batch_size", "16"]
TRAIN += ["--train.eval_every", "50", "--train.eval_samples", "50", "--train.save_every", "10", "--train.log_every", "5"]
TRAIN += ["--train.compile", "off", "--train.accelerator", "cpu", "--output.pictures", "false", "--output.report", "false"]
TRAIN += ["--output.display", "plain"]
SETTINGS = ("two processes", "two nodes")
TIMED = ("seconds", "samples/s", "memory")  # what no two runs have in common
REAL = 10  # every tenth start uses real launchers
LONGEST = 120.0  # seconds until the last process of a broken run must have ended


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Life:
    """One start of the run, until it ends or is killed.

    With `launchers`, real ones start its processes, which import everything anew. Without, they are copies of this process,
    which has imported everything already, with the environment that torchrun gives them.
    """

    def __init__(self, setting: str, words: list[str], folder: Path, launchers: bool) -> None:
        self.said, self.folder, self.setting, self.real = folder / "said.txt", folder, setting, launchers
        nodes = 2 if setting == "two nodes" else 1
        here, port = 2 // nodes, str(free_port())
        self.said.write_text("")
        self.started: list[int] = []
        self._codes: dict[int, int] = {}
        for rank in range(nodes if launchers else 2):
            torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
            torchrun += ["--master-port", port, "--node-rank", str(rank)] if nodes == 2 else []
            command = [
                *(torchrun if nodes == 2 else []),
                "-m",
                "idensenet",
                *words,
                *(["--devices", "2"] if nodes == 1 else []),
            ]
            local = {"LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here, "GROUP_RANK": rank // here, "GROUP_WORLD_SIZE": nodes}
            meet = {
                "RANK": rank,
                "WORLD_SIZE": 2,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "kills",
            }
            self.started.append(self._start(command, words, {} if launchers else {**local, **meet}))

    def _start(self, command: list[str], words: list[str], environment: dict[str, object]) -> int:
        pid = os.fork()
        if pid:
            return pid
        with self.said.open("a") as output:
            for number in (1, 2):
                os.dup2(output.fileno(), number)
        os.chdir(self.folder)
        os.environ.update({name: str(value) for name, value in environment.items()})
        if self.real:
            os.execv(sys.executable, [sys.executable, *command])
        code = 70
        try:
            code = cli.main(words)
            sys.stdout.flush()
        finally:
            os._exit(code)

    def nodes(self) -> list[list[int]]:
        """Process ids for each rank: launchers, if it has one of its own, and the rank itself."""
        if not self.real:
            return [[pid] for pid in self.started]
        if self.setting == "two nodes":
            return [[pid, *children(pid)] for pid in self.started]
        return [self.started, children(self.started[0])[:1] or self.started]

    def codes(self) -> list[int | None]:
        """Exit codes of what was started; None for what still runs."""
        for pid in self.started:
            if pid not in self._codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self._codes[pid] = os.waitstatus_to_exitcode(status)
        return [self._codes.get(pid) for pid in self.started]

    def running(self) -> bool:
        return None in self.codes()

    def training(self, pids: Iterable[int]) -> set[int]:
        """Which of these, and of the children of launchers, train and have not ended."""
        launchers = {*self.started} if self.real and self.setting == "two nodes" else set()
        self.codes()  # what has ended is forgotten by the system
        return {pid for pid in {*pids, *(child for each in launchers for child in children(each))} - launchers if alive(pid)}

    def kill(self, chance: random.Random) -> str:
        """Kill one process, or a node with its launcher; wait for the others. Returns what was killed."""
        nodes = self.nodes()
        everybody = {pid for node in nodes for pid in node}
        rank = chance.randrange(2)
        victims = nodes[rank] if chance.random() < 0.5 else nodes[rank][-1:]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline, left = time.monotonic() + LONGEST, everybody
        while left := self.training(left):
            if time.monotonic() > deadline:
                raise SystemExit(f"processes {sorted(left)} go on without the one that was killed:\n{self.said.read_text()}")
            time.sleep(0.05)
        # a launcher whose partner is gone waits for minutes before it gives up; no training process does
        for pid in self.started:
            if self.running():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        while self.running():
            time.sleep(0.05)
        return f"rank {rank}{' and its launcher' if len(victims) > 1 else ''}"


def steps(run: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))


def outcome(run: Path) -> dict[str, str | list[dict[str, object]]]:
    """All that a run has computed: its metrics, its best score, and every file of its last checkpoint."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = run / "checkpoints" / f"step-{steps(run)[-1]:08d}"
    files = [path for path in sorted(last.rglob("*")) if path.is_file() and path.suffix == ".safetensors"]
    model = json.loads((last / "model" / "model.json").read_text())
    for name in ("devices", "num_nodes"):
        model["config"]["train"].pop(name)
    return {
        "metrics": [{name: value for name, value in entry.items() if name not in TIMED} for entry in entries],
        "best": (run / "best.json").read_text(),
        "model": json.dumps(model),
        **{str(path.relative_to(last)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }


def disturbed(setting: str, kills: int, words: list[str], folder: Path, chance: random.Random) -> list[dict[str, object]]:
    """Train to the end with so many kills on the way, or as many as fit; one entry for each."""
    run, found = folder / "run", []
    while True:
        before = steps(run)[-1:] or [0]
        again = ["train", "--resume", "run"] if (run / "config.yaml").is_file() else words
        real = len(found) % REAL == REAL - 1
        life = Life(setting, again, folder, real)
        if len(found) < kills:
            early = chance.random() < 0.15  # while it starts, else while it trains
            log, size = run / "metrics.jsonl", -1
            if not early:
                size = log.stat().st_size if log.is_file() else 0
            while not early and life.running() and (log.stat().st_size if log.is_file() else 0) <= size:
                time.sleep(0.02)
            time.sleep(chance.uniform(0.0, (6.0 if real else 2.0) if early else 1.5))
        while len(found) >= kills and life.running():
            time.sleep(0.05)
        if not life.running():
            if any(life.codes()):
                raise SystemExit(f"a run that nobody killed ended with {life.codes()}:\n{life.said.read_text()}")
            return found
        what = life.kill(chance)
        after = steps(run)[-1:] or [0]
        if after < before:
            raise SystemExit(f"the checkpoint of step {before[0]} is gone after a kill of {what}")
        sentence = "has lost another process" in life.said.read_text()
        about = {
            "setting": setting,
            "launchers": real,
            "killed": what,
            "starting": early,
            "step": after[0],
            "sentence": sentence,
        }
        found.append(about)
        print(json.dumps(found[-1]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="kills of each setting")
    parser.add_argument("--steps", type=int, default=300, help="steps of a run")
    parser.add_argument("--most", type=int, default=15, help="kills of one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    words = [*TRAIN, "--train.max_steps", str(options.steps), "--train.timeout", "0.5", "--output.dir", "run"]
    chance, found, runs = random.Random(options.seed), [], 0
    with tempfile.TemporaryDirectory() as place:
        (calm := Path(place) / "calm").mkdir()
        disturbed("two processes", 0, words, calm, chance)
        wanted = outcome(calm / "run")
        for setting in options.settings:
            count = 0
            while count < options.kills:
                runs += 1
                (folder := Path(place) / str(runs)).mkdir()
                killed = disturbed(setting, min(options.most, options.kills - count), words, folder, chance)
                got = outcome(folder / "run")
                if got != wanted:
                    raise SystemExit(
                        f"run {runs} ({setting}) differs in {[name for name in wanted if got.get(name) != wanted[name]]}"
                    )
                print(f"run {runs}, {setting}: equal after {len(killed)} kills", flush=True)
                count, found = count + len(killed), found + killed
    said = sum(bool(each["sentence"]) for each in found if not each["starting"])
    training = sum(not each["starting"] for each in found)
    summary = {setting: sum(each["setting"] == setting for each in found) for setting in options.settings}
    result = {"kills": summary, "runs": runs, "in training": training, "with a sentence": said, "equal": runs}
    print(json.dumps(result))
    if options.out is not None:
        options.out.write_text(json.dumps({**result, "all": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
