"""Posteriors of simulators: an i-DenseNet inside sbi's NPE next to sbi's own NSF and MAF, at equal simulations.

    pip install -c constraints.txt -e '.[sbi]'
    python benchmarks/simulators.py --out runs/simulators --simulations 1000 10000     # continued where it stopped
    python benchmarks/simulators.py --out runs/simulators --show                       # the record as a table

Two simulators with known posteriors: `two-moons` (two parameters, two crescents) and `gaussian` (ten parameters, linear).
Each model is trained with each learning rate of RATES; sbi's validation loss chooses. C2ST is the accuracy of sbi's
classifier between samples of the model's posterior and exact ones, averaged over observations: 0.5 is perfect, 1 is worst.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sbi.inference import NPE
from sbi.utils import BoxUniform
from sbi.utils.metrics import c2st
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from idensenet.sbi import density_estimator

RATES = (5e-4, 5e-3)  # sbi's own, and one ten times as high
OBSERVATIONS, SAMPLES = 5, 1000


class TwoMoons:
    """x = (r cos a + 0.25, r sin a) + (-|t1 + t2|, t2 - t1) / sqrt 2 with a uniform in (-pi/2, pi/2), r ~ N(0.1, 0.01^2)."""

    prior: Distribution = BoxUniform(-torch.ones(2), torch.ones(2))

    @staticmethod
    def _noise(n: int) -> Tensor:
        angle, radius = math.pi * (torch.rand(n) - 0.5), 0.1 + 0.01 * torch.randn(n)
        return torch.stack([radius * torch.cos(angle) + 0.25, radius * torch.sin(angle)], 1)

    def simulate(self, theta: Tensor) -> Tensor:
        total, difference = theta.sum(1), theta[:, 1] - theta[:, 0]
        return self._noise(len(theta)) + torch.stack([-total.abs(), difference], 1) / math.sqrt(2)

    def posterior(self, n: int, x: Tensor) -> Tensor:
        """Exact: the noise is drawn, which leaves two solutions; solutions outside of the prior are dropped."""
        found = torch.empty(0, 2)
        while len(found) < n:
            rest = math.sqrt(2) * (x - self._noise(4 * n))  # (-|t1 + t2|, t2 - t1)
            rest = rest[rest[:, 0] <= 0]
            total = rest[:, 0] * torch.sign(torch.rand(len(rest)) - 0.5)
            theta = torch.stack([total - rest[:, 1], total + rest[:, 1]], 1) / 2
            found = torch.cat([found, theta[(theta.abs() <= 1).all(1)]])
        return found[:n]


class LinearGaussian:
    """theta ~ N(0, 0.1 I) in ten dimensions, x ~ N(theta, 0.1 I)."""

    prior: Distribution = MultivariateNormal(torch.zeros(10), 0.1 * torch.eye(10))

    def simulate(self, theta: Tensor) -> Tensor:
        return theta + math.sqrt(0.1) * torch.randn_like(theta)

    def posterior(self, n: int, x: Tensor) -> Tensor:
        return x / 2 + math.sqrt(0.05) * torch.randn(n, 10)


SIMULATORS: dict[str, Any] = {"two-moons": TwoMoons(), "gaussian": LinearGaussian()}
MODELS: dict[str, Callable[[], Any]] = {"i-DenseNet": density_estimator, "NSF": lambda: "nsf", "MAF": lambda: "maf"}


def trained(model: str, rate: float, prior: Distribution, theta: Tensor, x: Tensor, epochs: int) -> tuple[float, Any, float]:
    """The validation loss, the posterior, and the processor time of the training."""
    torch.manual_seed(0)
    inference = NPE(prior, density_estimator=MODELS[model](), show_progress_bars=False)
    inference.append_simulations(theta, x)
    began = time.process_time()
    network = inference.train(learning_rate=rate, max_num_epochs=epochs)
    taken = time.process_time() - began
    return float(inference.summary["best_validation_loss"][-1]), inference.build_posterior(network), taken


def measured(simulator: str, model: str, simulations: int, seed: int, epochs: int) -> dict[str, Any]:
    truth = SIMULATORS[simulator]
    torch.manual_seed(seed)
    theta = truth.prior.sample((simulations,))
    x = truth.simulate(theta)
    observed = truth.simulate(truth.prior.sample((OBSERVATIONS,)))
    exact = [truth.posterior(SAMPLES, each) for each in observed]
    runs = {rate: trained(model, rate, truth.prior, theta, x, epochs) for rate in RATES}
    rate = min(runs, key=lambda each: runs[each][0])
    _, posterior, seconds = runs[rate]
    torch.manual_seed(seed + 1)
    drawn = [posterior.sample((SAMPLES,), x=each, show_progress_bars=False) for each in observed]
    scores = [float(c2st(a, b)) for a, b in zip(exact, drawn, strict=True)]
    return {"c2st": scores, "rate": rate, "losses": {str(r): run[0] for r, run in runs.items()}, "seconds": round(seconds, 1)}


def shown(lines: list[dict[str, Any]]) -> str:
    words = [
        "| simulator | simulations | model | rate | C2ST | error | processor seconds |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for each in sorted(lines, key=lambda line: (line["simulator"], line["simulations"], line["model"])):
        score = torch.tensor(each["c2st"])
        error = float(score.std() / len(score) ** 0.5)
        name = f"| {each['simulator']} | {each['simulations']:,} | {each['model']} | {each['rate']:g} "
        words.append(f"{name}| {float(score.mean()):.3f} | {error:.3f} | {each['seconds']:.0f} |")
    return "\n".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    parser.add_argument("--simulations", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--simulators", nargs="+", default=list(SIMULATORS), choices=list(SIMULATORS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--epochs", type=int, default=300, help="most epochs of a training; sbi stops earlier by itself")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the record as a table, and do nothing else")
    values = parser.parse_args()
    record = values.out / "simulators.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []
    if values.show:
        print(shown(lines))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    values.out.mkdir(parents=True, exist_ok=True)
    done = {(each["simulator"], each["model"], each["simulations"], each["seed"]) for each in lines}
    for simulations in values.simulations:
        for simulator in values.simulators:
            for model in values.models:
                if (simulator, model, simulations, values.seed) in done:
                    continue
                found = measured(simulator, model, simulations, values.seed, values.epochs)
                key = {"simulator": simulator, "model": model, "simulations": simulations, "seed": values.seed}
                with record.open("a") as file:
                    file.write(json.dumps({**key, **found}) + "\n")
                print(json.dumps({**key, **found}), flush=True)


if __name__ == "__main__":
    main()
