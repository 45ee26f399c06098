"""The command line: idensenet COMMAND [options]. Exit code 0, 1 for a failure, 2 for bad input, 130 when interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module

from idensenet.allocator import keep_freed_memory
from idensenet.errors import InputError, UnknownNameError, nearest
from idensenet.extras import needs

COMMANDS = {
    "demo": ("idensenet.commands.demo", "fit a flow to the checkerboard, with pictures and a report"),
    "train": ("idensenet.commands.train", "train a recipe, or continue a run"),
    "evaluate": ("idensenet.commands.use", "score a model on held-out data"),
    "sample": ("idensenet.commands.use", "draw samples"),
    "score": ("idensenet.commands.score", "how odd your own data is, and how well the model separates it from another set"),
    "reconstruct": ("idensenet.commands.use", "send data there and back"),
    "certify": ("idensenet.commands.use", "guaranteed Lipschitz bounds"),
    "report": ("idensenet.commands.use", "write the page of a run"),
    "explore": ("idensenet.commands.explore", "open a live page on a model, on this machine"),
    "pack": ("idensenet.commands.pack", "write a finished run to one file, to pass it on"),
    "unpack": ("idensenet.commands.pack", "make a run of such a file"),
    "reproduce": ("idensenet.reproduce.command", "make a table or figure of the paper again"),
    "bench": ("idensenet.commands.bench", "measure speed and memory on this machine"),
    "data": ("idensenet.commands.data", "download or import a data set"),
    "recipes": ("idensenet.commands.data", "list all models"),
}


def usage() -> str:
    lines = [f"  {name:<12} {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: idensenet COMMAND [options]\n\nDensity models you can invert, certify and trust.\n\n"
        + "\n".join(lines)
        + "\n\n'idensenet COMMAND --help' tells more. example: idensenet demo"
    )


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "--version":
        from idensenet import __version__

        print(__version__)
        return 0
    if name not in COMMANDS:
        raise UnknownNameError(f"There is no command {name!r}; {nearest(name, list(COMMANDS))}")
    with needs(f"'idensenet {name}'"):
        command: Callable[[list[str]], int] = getattr(import_module(COMMANDS[name][0]), name)
        return command(rest)


def main(arguments: list[str] | None = None) -> int:
    if arguments is None:  # the process is ours
        keep_freed_memory()
    try:
        return run(sys.argv[1:] if arguments is None else arguments)
    except InputError as error:
        print(f"idensenet: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read what we say has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - so that nothing is said at the end
        return 141
    except (ArithmeticError, OSError) as error:
        print(f"idensenet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("idensenet: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
