"""idensenet explore: a page on this machine that shows a trained model while you move things."""

from __future__ import annotations

import os
from pathlib import Path

from idensenet.commands.parsing import add_groups
from idensenet.commands.use import model_parser
from idensenet.config import Config
from idensenet.errors import InputError, OptionError
from idensenet.storage import load
from idensenet.training.sources import model_and_source


def explore(arguments: list[str]) -> int:
    """Serve the page until Ctrl-C.

    Args:
        arguments: The words of the command line.

    Returns:
        The exit code: 0 after Ctrl-C. A second Ctrl-C ends the process at once, with 130.

    Raises:
        OptionError: The port is taken or out of range, or the model is of no kind that can be shown.
    """
    parser = model_parser(
        "explore",
        "Open a page on this machine that shows a trained model: its density, samples, paths through the blocks, "
        "least likely rows, or the neighbourhood of images. It loads nothing from the network, and Ctrl-C ends it.",
        "idensenet explore runs/moons",
    )
    parser.add_argument("--port", type=int, default=0, help="The port on 127.0.0.1; 0 takes any that is free.")
    parser.add_argument("--open", type=bool, default=True, help="Open the page in a browser; false only prints its address.")
    add_groups(parser, Config(), ("data",))
    values = parser.read(arguments)
    if not 0 <= values.port <= 65535:
        raise OptionError(f"--port {values.port} must lie between 0 and 65535.")
    from idensenet.explore.explorer import Explorer
    from idensenet.explore.server import Server
    from idensenet.explore.subject import Subject

    flow = load(values.run, step=values.step)
    source, missing = None, "The model does not say what it was trained on."
    if flow.config is not None:
        try:
            source = model_and_source(values.run, values.step, values.data)[1]
        except (InputError, OSError) as error:
            if values.data.table or values.data.folder or values.data.name:
                raise
            missing = str(error)
    title = Path(values.run).resolve().name if Path(values.run).exists() else values.run
    explorer = Explorer(Subject(flow, title, source, missing))
    try:
        server = Server(explorer, values.port)
    except OSError as error:
        raise OptionError(f"--port {values.port} cannot be used ({error.strerror}); choose another, or 0 for any.") from error
    if source is None:
        print(f"without data: {missing}")
    print(f"{title} is at {server.address}", "Press Ctrl-C to end.", sep="\n", flush=True)
    if values.open:
        import webbrowser

        if not webbrowser.open(server.address):
            print("No browser could be opened; open the address yourself.", flush=True)
    try:
        server.run()
    except KeyboardInterrupt:  # twice: a thread is still computing, and would be in the way of an orderly end
        print("\nThe page has ended in the middle of an answer.", flush=True)
        os._exit(130)
    print("\nThe page has ended.", flush=True)
    return 0
