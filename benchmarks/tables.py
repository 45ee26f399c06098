"""Held-out log-likelihood on scikit-learn's tables: ours beside a Gaussian, mixtures, kernels and other flows.

    pip install -c constraints.txt -e '.[bench,zuko]'
    python benchmarks/tables.py                    # all of it; hours, continued where it stopped; writes docs/tables.md
    python benchmarks/tables.py --sets iris --folds 2 --steps 100

Everybody gets the same rows: constant columns dropped, columns on a grid spread by uniform noise of one step of it, then each
column by the mean and deviation of the training rows. Everybody has four configurations to choose from by rows held out of the
training rows (15 %, the same for all). The Gaussian's covariance has a ridge, which is what it chooses. What needs no held-out
rows to know when to stop is then fitted again to all training rows; the flows of others stop by the held-out ones. Several
processes can share a cache if they have different sets.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import multivariate_normal
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import KFold, train_test_split
from sklearn.neighbors import KernelDensity

from idensenet.files import write_atomically
from idensenet.sklearn import FlowDensity

Array = np.ndarray[Any, Any]
Score = Callable[[Array], Array]
RIDGE = 1e-2  # of the mixtures
SETS = {
    "iris": load_iris,
    "wine": load_wine,
    "diabetes": load_diabetes,
    "breast cancer": load_breast_cancer,
    "digits": load_digits,
}


def prepared(x: Array, seed: int = 0) -> Array:
    """Without constant columns, and with noise in columns that have few values: a step of their grid."""
    x = np.asarray(x, np.float64)
    x = x[:, x.std(0) > 0]
    random = np.random.default_rng(seed)
    for j in range(x.shape[1]):
        values = np.unique(x[:, j])
        if len(values) < 0.5 * len(x):
            x[:, j] += random.uniform(0, np.diff(values).min(), len(x))
    return x


# The models: (training rows, held-out rows, configuration, steps) -> scores of rows, and the held-out score that chooses


def gaussian(train: Array, held_out: Array | None, ridge: float, steps: int) -> Score:
    law = multivariate_normal(train.mean(0), np.cov(train.T, bias=True) + ridge * np.eye(train.shape[1]))
    return lambda x: np.asarray(law.logpdf(x)).reshape(-1)


def mixture(train: Array, held_out: Array | None, config: tuple[int, str], steps: int) -> Score:
    components, kind = config
    return GaussianMixture(components, covariance_type=kind, reg_covar=RIDGE, n_init=3, random_state=0).fit(train).score_samples


def kernels(train: Array, held_out: Array | None, bandwidth: float, steps: int) -> Score:
    return KernelDensity(bandwidth=bandwidth).fit(train).score_samples


def ours(train: Array, held_out: Array | None, config: dict[str, Any], steps: int) -> Score:
    """To choose by held-out rows, one split of few rows is enough; the last fit is as users have it."""
    folds = None if held_out is None else 1
    return FlowDensity(max_iter=steps, folds=folds, random_state=0, **config).fit(train).score_samples


def trained(
    model: torch.nn.Module, log_prob: Callable[[torch.Tensor], torch.Tensor], train: Array, held_out: Array, steps: int
) -> None:
    """Adam on batches of 128, until held-out rows have not gained for ten looks; the best weights are kept."""
    x, y = torch.from_numpy(train), torch.from_numpy(held_out)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(0)
    best, since, kept = math.inf, 0, None
    for step in range(steps):
        if step % 20 == 0:
            with torch.no_grad():
                score = float(-log_prob(y).mean())
            if score < best:
                best, since, kept = score, 0, {name: value.clone() for name, value in model.state_dict().items()}
            since += 1
            if since > 10:
                break
        optimizer.zero_grad()
        loss = -log_prob(x[torch.randint(len(x), (min(128, len(x)),), generator=generator)]).mean()
        if torch.isfinite(loss):
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
    if kept is not None:
        model.load_state_dict(kept)


def zuko_flow(kind: str) -> Callable[..., Score]:
    def fit(train: Array, held_out: Array, config: tuple[int, int], steps: int) -> Score:
        import zuko

        torch.manual_seed(0)
        transforms, width = config
        model = getattr(zuko.flows, kind)(train.shape[1], transforms=transforms, hidden_features=(width, width)).double()
        trained(model, lambda x: model().log_prob(x), train, held_out, steps)

        def score(x: Array) -> Array:
            with torch.no_grad():
                return model().log_prob(torch.from_numpy(x)).numpy()

        return score

    return fit


def normflows_residual(train: Array, held_out: Array, config: tuple[int, int], steps: int) -> Score:
    """Trained with its own estimate; scored with the log-determinant of the whole Jacobian."""
    import normflows as nf

    torch.manual_seed(0)
    blocks, width = config
    dims = train.shape[1]
    parts = [
        nf.flows.Residual(nf.nets.LipschitzMLP([dims, width, width, dims], init_zeros=True, lipschitz_const=0.9))
        for _ in range(blocks)
    ]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(dims, trainable=False), parts).double()
    trained(model, model.log_prob, train, held_out, steps)
    model.eval()

    def latent(x: torch.Tensor) -> torch.Tensor:
        for part in reversed(parts):
            x = x + part.iresblock.nnet(x)
        return x

    def score(x: Array) -> Array:
        found = []
        for part in torch.split(torch.from_numpy(x.copy()), 100):
            z = latent(part.requires_grad_())
            J = torch.stack([torch.autograd.grad(z[:, i].sum(), part, retain_graph=True)[0] for i in range(dims)], 1)
            base = -0.5 * (z.square().sum(1) + dims * math.log(2 * math.pi))
            found.append((base + torch.linalg.slogdet(J).logabsdet).detach().numpy())
        return np.concatenate(found)

    return score


FLOWS = [(3, 64), (3, 128), (5, 64), (5, 128)]
MODELS: dict[str, tuple[Callable[..., Score], list[Any]]] = {
    "Gaussian": (gaussian, [1e-6, 1e-4, 1e-2, 1e-1]),
    "Gaussian mixture": (mixture, [(2, "full"), (4, "full"), (4, "diag"), (12, "diag")]),
    "kernel density": (kernels, [0.2, 0.35, 0.5, 0.8]),
    "neural spline flow (zuko)": (zuko_flow("NSF"), FLOWS),
    "RealNVP (zuko)": (zuko_flow("RealNVP"), [(4, 64), (4, 128), (8, 64), (8, 128)]),
    "residual flow (normflows)": (normflows_residual, [(4, 64), (4, 128), (8, 64), (8, 128)]),
    "FlowDensity, no options": (ours, [{}]),
    "FlowDensity": (ours, [{}, {"blocks": 3}, {"blocks": 10}, {"depth": 3}]),
}
AGAIN = (gaussian, mixture, kernels, ours)  # fitted to all training rows in the end


def measured(name: str, train: Array, test: Array, steps: int) -> dict[str, Any]:
    """The score of the configuration that held-out rows choose, on test rows."""
    fit, configs = MODELS[name]
    mean, deviation = train.mean(0), train.std(0)
    train, test = (train - mean) / deviation, (test - mean) / deviation
    inner, held_out = train_test_split(train, test_size=0.15, random_state=0)
    began, fitted = time.monotonic(), []
    for config in configs if len(configs) > 1 else []:
        score = fit(inner, held_out, config, steps)
        fitted.append((float(np.mean(score(held_out))), score, config))
    _, score, config = max(fitted, key=lambda each: each[0], default=(0.0, None, configs[0]))
    chosen = time.monotonic()
    if score is None or fit in AGAIN:
        score = fit(train, None, config, steps)
    done = time.monotonic()
    times = {"seconds": round(done - began, 1), "last fit": round(done - chosen, 1)}
    return {"score": float(np.mean(score(test))), "config": str(config), **times}


def _table(title: str, results: dict[str, Any], folds: int, value: Callable[[str, str, int], float], digits: int) -> str:
    """The mean over folds with its standard error, for all sets and models that are whole; the best of a column in bold."""
    sets = [s for s in SETS if any(key.startswith(f"{s}/") for key in results)]
    cells: dict[tuple[str, str], tuple[float, float]] = {}
    for name in sets:
        for model in MODELS:
            if all(f"{name}/{model}/{i}" in results and f"{name}/Gaussian/{i}" in results for i in range(folds)):
                found = [value(name, model, i) for i in range(folds)]
                error = float(np.std(found, ddof=1)) / math.sqrt(folds) if folds > 1 else math.nan
                cells[name, model] = float(np.mean(found)), error
    lines = [f"| {title} | " + " | ".join(sets) + " |", "|---|" + "---:|" * len(sets)]
    for model in MODELS:
        words = []
        for name in sets:
            mean, error = cells.get((name, model), (math.nan, math.nan))
            best = max((m for (n, _), (m, _) in cells.items() if n == name), default=math.nan)
            mark = "**" if mean == best else ""
            words.append(f"{mark}{mean:.{digits}f}{mark} ± {error:.{digits}f}" if mean == mean else "")
        lines.append(f"| {model} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def markdown(results: dict[str, Any], folds: int) -> str:
    """Scores, and how far they are above the Gaussian's of the same fold."""
    score = lambda name, model, i: results[f"{name}/{model}/{i}"]["score"]  # noqa: E731
    above = lambda name, model, i: score(name, model, i) - score(name, "Gaussian", i)  # noqa: E731
    return "\n\n".join(
        [
            _table("nats a row, standardised columns", results, folds, score, 2),
            _table("nats above the Gaussian, paired over folds", results, folds, above, 2),
        ]
    )


def page(results: dict[str, Any], folds: int) -> str:
    """What is written to a file."""
    return f"""# Densities of tables

Held-out log-likelihood on scikit-learn's tables, {folds} folds, mean ± standard error over folds. Higher is better, and the
best of a column is bold. Written by `python benchmarks/tables.py --out docs/tables.md`.

Everybody gets the same rows: constant columns dropped, columns on a grid spread by uniform noise of one step of it, then each
column by the mean and deviation of the training rows. Everybody but the line without options has four configurations to choose
from by 15 % of the training rows, the same for all. The flows of others stop early by those rows; everything else is then
fitted to all training rows, and `FlowDensity` holds out rows by itself. Covariances have a ridge: the Gaussian chooses its own
out of {", ".join(f"{each:g}" for each in MODELS["Gaussian"][1])}, the mixtures have {RIDGE:g}.

{markdown(results, folds)}

Errors in the first table are mostly what folds have in common; in the second that is taken away.
"""


def known(cache: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cache.read_text()) if cache.is_file() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000, help="of training at most")
    parser.add_argument("--cache", type=Path, default=Path("runs/tables.json"), help="what is done; it goes on from there")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file to write the page to")
    values = parser.parse_args()
    results = known(values.cache)
    for name in values.sets:
        x = prepared(SETS[name]().data)
        for i, (train, test) in enumerate(KFold(values.folds, shuffle=True, random_state=0).split(x)):
            for model in values.models:
                key = f"{name}/{model}/{i}"
                if key not in results:
                    results[key] = measured(model, x[train], x[test], values.steps)
                    results = {**known(values.cache), key: results[key]}
                    write_atomically(values.cache, json.dumps(results, indent=1) + "\n")
                    print(
                        f"{key}: {results[key]['score']:.3f} in {results[key]['seconds']} s, {results[key]['config']}",
                        flush=True,
                    )
    print(markdown(results, values.folds))
    if values.out is not None:
        write_atomically(values.out, page(results, values.folds))
        print(f"written: {values.out}")


if __name__ == "__main__":
    main()
