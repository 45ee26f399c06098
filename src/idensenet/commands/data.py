"""idensenet data and idensenet recipes."""

from __future__ import annotations

import shutil
import textwrap


def data(arguments: list[str]) -> int:
    from idensenet.commands.parsing import Parser

    parser = Parser("data", "Download or import a data set, and verify its content.", "idensenet data cifar10 --root data")
    parser.add_argument("name", type=str, help="Data set: mnist, fashion-mnist, cifar10 or imagenet32.")
    parser.add_argument("--root", type=str, default="data", help="Folder to put it in.")
    parser.add_argument("--from", type=str | None, default=None, dest="source", help="File or folder to import.")
    values = parser.read(arguments)
    from idensenet.data.catalog import open_source
    from idensenet.data.download import fetch, import_from

    if values.source:
        import_from(values.name, values.source, values.root)
    else:
        fetch(values.name, values.root)
    source = open_source(values.name, root=values.root)
    print(f"{source.name}: {len(source.train):,} + {len(source.test):,} samples in {values.root}")
    for note in source.notes:
        print(note)
    return 0


def recipes(arguments: list[str]) -> int:
    if arguments:  # help, or a mistake
        from idensenet.commands.parsing import Parser

        Parser("recipes", "List all models with their size and what the paper reports.", "idensenet recipes").read(arguments)
    from idensenet import config

    names = config.recipes()
    width, wide = max(map(len, names)), min(100, max(60, shutil.get_terminal_size().columns))
    for name in names:
        found = config.recipe(name)
        print(f"{name:<{width}} {found.parameters:>12,} parameters" if found.parameters else name)
        paper = f"; the paper reports {found.paper}" if found.paper else ""
        print(textwrap.fill(found.description + paper, wide, initial_indent="    ", subsequent_indent="    "))
    return 0
