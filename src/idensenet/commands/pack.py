"""idensenet pack and idensenet unpack: a run as one file."""

from __future__ import annotations

from pathlib import Path

from idensenet.commands.parsing import Parser


def pack(arguments: list[str]) -> int:
    parser = Parser(
        "pack",
        "Write one checkpoint of a run, with its configuration and its metrics, to one file. "
        "It can be used, but not trained further: the state of the optimiser stays behind.",
        "idensenet pack runs/moons --out moons.safetensors",
    )
    parser.add_argument("run", type=str, help="The folder of a run.")
    parser.add_argument("--out", type=str | None, default=None, help="The file; RUN.safetensors by default.")
    parser.add_argument("--step", type=str, default="last", help="Which checkpoint: a number, last or best.")
    parser.add_argument("--compact", type=bool, default=False, help="Write the averaged weights alone, in half precision.")
    values = parser.read(arguments)
    from idensenet.training.packing import pack as write
    from idensenet.training.run import RunFolder

    run = RunFolder(values.run)
    run.description()
    file = write(run, Path(values.out or f"{run.path.resolve()}.safetensors"), values.step, values.compact)
    print(f"{file}: {file.stat().st_size / 1e3:,.0f} kB")
    return 0


def unpack(arguments: list[str]) -> int:
    parser = Parser(
        "unpack", "Make a run of a file that 'idensenet pack' wrote.", "idensenet unpack moons.safetensors --out runs/moons"
    )
    parser.add_argument("file", type=str, help="The file that 'idensenet pack' wrote.")
    parser.add_argument("--out", type=str | None, default=None, help="The folder; FILE without its ending by default.")
    values = parser.read(arguments)
    from idensenet.training.packing import unpack as read

    file = Path(values.file)
    run = read(file, Path(values.out) if values.out else file.with_suffix(""))
    print(f"{run.path}: step {run.checkpoints.find('last'):,}")
    return 0
