"""idensenet data and idensenet recipes."""

from __future__ import annotations

from idensenet.commands.parsing import Parser


def data(arguments: list[str]) -> int:
    parser = Parser("data", "Download or import a data set, and verify its content.", "idensenet data cifar10 --root data")
    parser.add_argument("name", type=str, help="mnist, fashion-mnist, cifar10 or imagenet32")
    parser.add_argument("--root", type=str, default="data", help="folder to put it in")
    parser.add_argument("--from", type=str | None, default=None, dest="source", help="a file or folder to import instead")
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
    Parser("recipes", "List all models with their size and what the paper reports.", "idensenet recipes").read(arguments)
    from rich.console import Console
    from rich.table import Table

    from idensenet import config
    from idensenet.models import build

    table = Table()
    for column in ("recipe", "parameters", "paper", "what it is"):
        table.add_column(column, justify="right" if column == "parameters" else "left", no_wrap=column == "recipe")
    for name in config.recipes():
        found = config.recipe(name)
        table.add_row(name, f"{build(name).num_parameters:,}", found.paper or "", found.description)
    Console().print(table)
    return 0
