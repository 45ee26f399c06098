"""Small models of each kind, and a server for one of them."""

import threading
from contextlib import contextmanager

import numpy as np
import torch

from idensenet.columns import Columns
from idensenet.data.source import Source, Split
from idensenet.explore.explorer import Explorer
from idensenet.explore.server import Server
from idensenet.explore.subject import Subject
from report_runs import image_flow, image_source, toy_flow, toy_source

HOSTILE = "<script>window.hacked = 1</script>"
IMAGE = '<img src=x onerror="window.hacked = 1">'


def plane_subject(**changes):
    return Subject(toy_flow(), **{"title": f"moons {HOSTILE}", "source": toy_source(), **changes})


def table_subject(data=True):
    """Three real columns, a count and a nominal one, with names that would run if they were taken for markup."""
    generator = np.random.default_rng(0)
    names = [IMAGE, "height", HOSTILE, "children", "city"]
    raw = [generator.normal(size=400), generator.normal(170, 9, 400), generator.normal(size=400)]
    raw += [generator.poisson(2, 400).astype(float), generator.choice(["Oslo", IMAGE, "Rome"], 400)]
    columns = Columns.nominal_of(raw, names, ["float64"] * 4 + ["object"], ["city"])
    x = np.stack([*raw[:4], columns.coded(raw[4], 4)], 1)
    columns = columns.discrete_of(x, ["children"]).counted(x)
    flow = toy_flow(
        shape=(4,), preprocess="standardize", context=3, integers=(3,), logdet={"eval_method": "exact"}, initialized=False
    )
    flow.columns = columns
    numbers, context = columns.numbers(x).astype(np.float32), columns.one_hot(x).astype(np.float32)
    flow.standardize(torch.from_numpy(numbers), torch.from_numpy(context))
    split = [Split(numbers[part], context=context[part]) for part in (slice(100), slice(100, None))]
    source = Source("table", *split, (4,), columns=tuple(names[:4]), table=columns, notes=(f"A note with {IMAGE}.",))
    return Subject(flow, f"people {IMAGE}", source if data else None, "" if data else f"no file {HOSTILE}")


def image_subject(data=True):
    flow = image_flow()
    return Subject(flow, "digits", image_source(flow) if data else None, "" if data else "not downloaded")


@contextmanager
def serving(subject):
    """A server in a thread."""
    server = Server(Explorer(subject))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        server.explorer.close()
