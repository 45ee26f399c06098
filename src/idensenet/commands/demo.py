"""idensenet demo: a flow is trained on the checkerboard, evaluated, inverted and certified, and reported on one page."""

from __future__ import annotations

import numpy as np
import torch

from idensenet.commands.parsing import Parser
from idensenet.commands.train import start
from idensenet.config import recipe
from idensenet.errors import OptionError
from idensenet.storage import load
from idensenet.threads import suited_to
from idensenet.training.evaluation import mean_and_error
from idensenet.training.run import RunFolder
from idensenet.training.sources import source_of

COMMAND = "idensenet demo"


def demo(arguments: list[str]) -> int:
    parser = Parser("demo", "Fit a flow to the checkerboard in two to three minutes.", "idensenet demo --out demo")
    parser.add_argument("--out", type=str, default="demo", help="Folder of the run; replaces an earlier demo and nothing else.")
    parser.add_argument("--steps", type=int, default=2500, help="Number of training steps.")
    values = parser.read(arguments)
    run = RunFolder(values.out)
    if run.exists():
        if not str(run.description()["command"]).startswith(COMMAND):
            raise OptionError(f"{values.out} holds a run that is not a demo; choose another folder with --out.")
        with run.locked():
            run.clear()
    config = recipe("toy-best").config.replace(
        train={
            "max_steps": values.steps,
            "betas": (0.9, 0.99),
            "warmup": 0.1,
            "eval_samples": 20_000,
            "eval_every": max(1, values.steps // 2),
            "log_every": 20,
        },
        output={"dir": values.out},
    )
    code = start(config, "toy-best", f"{COMMAND} --out {values.out} --steps {values.steps}")
    if code:
        return code
    flow, source = load(run.path), source_of(config)
    assert source.stream is not None
    held_out = source.test.batch(np.arange(20_000)).x
    with torch.no_grad(), suited_to(flow, len(held_out)):
        nats, error = mean_and_error(-flow.log_prob(held_out))
        round_trip = float((flow.inverse(flow(held_out[:2000])[0])[0] - held_out[:2000]).abs().max())
    print(
        f"{nats:.3f} +- {error:.3f} nats on held-out points (no model scores below the entropy, {source.stream.entropy:.3f}); "
        f"round-trip error {round_trip:.1e}; certified L {flow.certify().L:.3f}"
    )
    for picture in sorted(run.pictures.glob("step-*.png"))[-1:]:
        print(f"picture: {picture}")
    print(f"report:  {run.path / 'report.html'}")
    return 0
