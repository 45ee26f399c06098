"""idensenet train: a new run, or the rest of an old one."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from idensenet.allocator import give_back_freed_memory
from idensenet.commands.parsing import Parser, add_groups, config_of, recipe_config, recipe_in_file
from idensenet.config import Config, recipes
from idensenet.data.row_groups import unsaid
from idensenet.errors import LostProcessError, OptionError, StorageError
from idensenet.flow_input import MIXED
from idensenet.report.page import write_report
from idensenet.report.pictures import run_picture
from idensenet.threads import set_by_user, suited_to, threads_for
from idensenet.training.continuing import batch_notes, begun, how_to_go_on
from idensenet.training.display import Notices
from idensenet.training.initial import weights_of
from idensenet.training.loop import Trainer
from idensenet.training.options import check, fitted
from idensenet.training.run import RunFolder
from idensenet.training.sources import by_name, data_notes, known_columns, source_of
from idensenet.training.world import World, leaving_in_order, restarted

COMMON = (
    "config",
    "resume",
    "dry_run",
    "data.name",
    "data.root",
    "data.folder",
    "data.table",
    "model.blocks",
    "model.growth",
    "logdet.method",
    "train.initial",
    "train.epochs",
    "train.max_steps",
    "train.batch_size",
    "train.lr",
    "train.schedule",
    "train.seed",
    "train.devices",
    "train.precision",
    "output.dir",
)
EXAMPLE = "idensenet train toy-idensenet --data.name moons --train.max_steps 2000 --output.dir runs/moons"


def start(
    config: Config,
    recipe: str | None,
    command: str,
    resume: RunFolder | None = None,
    step: str = "last",
    stop_after: int | None = None,
) -> int:
    """Train, in a new folder or from a checkpoint."""
    world, settled = World.of(config.train), set_by_user()
    config = dataclasses.replace(config, train=world.applied(config.train))
    run = resume or folder_of(config, recipe)
    with leaving_in_order():
        # processes that a launcher has started meet first, so that none waits for one that fails
        fabric = world.connect(config.train) if world.launcher else None
        rank = fabric.global_rank if fabric is not None else int(os.environ.get("LOCAL_RANK", "0"))
        report = unsaid if rank or config.output.display == "quiet" else Notices("before the first step")
        source = source_of(config, known_columns(resume), report)
        trainer = Trainer(fitted(config, source), source, run, run_picture, fabric)
        initial = trainer.config.train.initial
        if initial is not None and resume is None:  # what does not fit is found before anything is written
            _, notes = weights_of(initial, trainer.flow)
            for note in notes if trainer.rank == 0 else ():
                print(note, flush=True)
        with run.locked() if trainer.rank == 0 else nullcontext(), _threads(trainer, settled):
            try:
                code = _locked(trainer, recipe, command, resume is not None, step, stop_after)
                trainer.ranks.barrier()  # nobody ends while another is at work
                return code
            except LostProcessError as error:
                raise LostProcessError(f"{error}; {how_to_go_on(run, 'see what it says')}") from error
            except OSError as error:
                raise StorageError(
                    f"Reading or writing failed ({error.strerror or error}); {how_to_go_on(run, 'mend that')}"
                ) from error


def folder_of(config: Config, recipe: str | None) -> RunFolder:
    """The folder of a new run."""
    return RunFolder(config.output.dir or f"runs/{recipe or 'run'}")


def _threads(trainer: Trainer, settled: bool) -> AbstractContextManager[None]:
    """Threads that suit the model; `settled` if the user has chosen, before Fabric divided the cores among the processes."""
    t, wanted = trainer.config.train, trainer.config.train.threads
    if wanted is None and not settled:
        wanted = min(torch.get_num_threads(), threads_for(trainer.flow, t.batch_size))
    return suited_to(trainer.flow, t.batch_size, wanted)


def _locked(trainer: Trainer, recipe: str | None, command: str, resume: bool, step: str, stop_after: int | None) -> int:
    run, quiet = trainer.run, trainer.config.output.display == "quiet"
    if resume:
        for note in (*data_notes(run, trainer.source), *batch_notes(run, trainer.config.train)) if trainer.rank == 0 else ():
            print(note, flush=True)
        trainer.resume(0 if step == "last" and run.unsaved() else run.checkpoints.find(step))
        if trainer.rank == 0:
            run.change(trainer.config, command)
            run.remember(trainer.source)
    else:
        if trainer.rank == 0:
            run.create(trainer.config, recipe, command)
            run.remember(trainer.source)
        trainer.ranks.barrier()
        base = trainer.flow.base
        if base is not None and trainer.config.train.initial is None and trainer.rank == 0 and not quiet:
            print(f"fitting {base.components} Gaussians to {min(len(trainer.source.train), MIXED):,} rows", flush=True)
        trainer.start()
    if stop_after is not None and stop_after <= trainer.progress.step:
        raise OptionError(f"--stop-after {stop_after} must be later than step {trainer.progress.step}, where the run stands.")
    if trainer.rank == 0 and not quiet:
        s = trainer.schedule
        if not resume and trainer.source.table is not None and not trainer.source.table.plain:
            print(*trainer.source.notes[1:], "--data.discrete and --data.categorical change that.", flush=True)
        processes = f" on {World.of(trainer.config.train).in_words()}" if trainer.world > 1 else ""
        print(
            f"{trainer.flow.num_parameters:,} parameters, steps {trainer.progress.step} to {s.steps}{processes}, "
            f"results in {run.path}",
            flush=True,
        )
    code = trainer.train(stop_after)
    if trainer.rank == 0 and code == 0 and trainer.config.output.report:
        page = write_report(run)
        if not quiet:
            print(f"report: {page}")
    return code


def assumed(config: Config, device: str) -> int:
    """Print what a step would cost on a device that need not be here. Nothing is run, and no data is read."""
    from idensenet.bench.cost import in_words
    from idensenet.models import build_config

    print("\n".join(in_words(config, build_config(config), device)))
    return 0


def dry_run(config: Config, steps: int = 3) -> int:
    """Print what would be run, how large it is, and how long it would take, from a few timed steps."""
    import tempfile

    import yaml

    from idensenet.training.interrupt import StopRequest

    source = source_of(config)
    config = fitted(config, source)
    with tempfile.TemporaryDirectory() as folder:
        settled = set_by_user()
        trainer = Trainer(config, source, RunFolder(folder))
        with leaving_in_order(), _threads(trainer, settled):
            trainer.start()
            trainer.step(0, StopRequest())
            began = time.monotonic()
            for number in range(1, steps + 1):
                trainer.step(number, StopRequest())
        seconds = (time.monotonic() - began) / steps
    if trainer.rank > 0:
        return 0
    print(yaml.safe_dump(config.as_dict(), sort_keys=False), end="")
    import resource

    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    total = seconds * trainer.schedule.steps
    print(f"parameters: {trainer.flow.num_parameters:,}")
    print(f"memory: {memory:.2f} GB at its peak over {steps + 1} steps")
    print(f"time: {seconds:.3g} s a step, {trainer.schedule.steps:,} steps, about {total / 3600:.3g} hours")
    return 0


def parse(arguments: list[str], recipe: str | None = None, resume: str | None = None) -> tuple[Config, Any]:
    """The configuration that a command line asks for, and the other options.

    The recipe or the run that the defaults are from may stand anywhere in it: once they are known, it is read again.
    """
    arguments = [f"--train.{word[2:]}" if word.partition("=")[0] == "--devices" else word for word in arguments]
    asked = [word for word in arguments if word.startswith("--print_config")]  # only once the recipe is known
    plain = [word for word in arguments if word not in asked]
    if not (recipe or resume) and plain and plain[0] in recipes():
        return parse(arguments, plain[0])  # where it mostly stands
    defaults, note = RunFolder(resume).options() if resume else (recipe_config(recipe) if recipe else Config(), "")
    parser = Parser("train", "Train a model of a recipe, or continue a run.", EXAMPLE)
    parser.add_argument(
        "recipe", type=str | None, nargs="?", default=None, help="name of a recipe; 'idensenet recipes' lists them"
    )
    parser.add_argument("--config", action="config", help="YAML file of options")
    parser.add_argument("--resume", type=str | None, default=None, help="folder of a run to continue")
    parser.add_argument(
        "--step", type=str, default="last", help="with --resume: continue from this checkpoint, a number, last or best"
    )
    parser.add_argument(
        "--stop-after", type=int | None, default=None, help="stop at this step of the run, with a checkpoint to go on from"
    )
    parser.add_argument("--dry-run", action="store_true", help="show configuration, size and duration; train nothing")
    parser.add_argument(
        "--assume", type=str | None, default=None, help="with --dry-run: calculate for h100, titan-rtx, 8xh100, ... instead"
    )
    add_groups(parser, defaults)
    parser.common = COMMON
    values: Any = parser.read(plain)
    if values.assume and not values.dry_run:
        raise OptionError("--assume is for --dry-run, which calculates and trains nothing; leave it out, or add --dry-run.")
    if values.recipe and values.resume:
        raise OptionError(f"A recipe ({values.recipe}) and --resume {values.resume} are both given; leave one out.")
    if (values.recipe, values.resume) != (recipe, resume):
        return parse(arguments, values.recipe, values.resume)
    if asked:
        parser.read(arguments)
    if not (recipe or resume or values.config):
        raise OptionError("What to train is missing: give a recipe ('idensenet recipes' lists them), a --config or a --resume.")
    if note:
        print(note, flush=True)
    config = config_of(values)
    return dataclasses.replace(config, data=by_name(config.data, defaults.data)), values


def train(arguments: list[str]) -> int:
    config, values = parse(recipe_in_file(arguments))
    typed = {word.partition("=")[0] for word in arguments}
    if config.data.name and "--data.name" in typed and typed & {"--data.table", "--data.folder"}:
        raise OptionError("Both --data.name and a table or folder of one's own are given; data comes from one place.")
    check("--stop-after", values.stop_after)
    if values.dry_run:
        return assumed(config, values.assume) if values.assume else dry_run(config)
    torch.set_float32_matmul_precision("highest")
    if config.train.memory == "save":
        give_back_freed_memory()
    command = shlex.join(["idensenet", "train", *arguments])
    resume, step = RunFolder(values.resume) if values.resume else None, values.step
    if restarted():  # by SLURM or torchrun, with the same words as at first
        resume, step = resume or begun(folder_of(config, values.recipe), command), "last"
        config = config if values.resume or resume is None else parse(["--resume", str(resume.path)])[0]
    given = {"devices": {"--devices", "--train.devices"}, "num_nodes": {"--train.num_nodes"}}
    World.of(config.train, {name for name, words in given.items() if words & typed})
    return start(config, values.recipe, command, resume, step, values.stop_after)
