"""The densities that `benchmarks/tables.py` compares: each takes training rows and seconds, and returns scores of rows.

Flows of others get Adam with a rate (`RATES`) that falls as half a cosine over the processor time that they have, batches of
256, and the weights that were best on held-out rows. Everything that has settings chooses them by the same held-out rows, 15 %
of the training rows; what has no need of held-out rows afterwards is fitted again to all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KernelDensity

from idensenet.sklearn import FlowDensity

Array = np.ndarray[Any, Any]
Score = Callable[[Array], Array]
Fit = Callable[[Array, float], tuple[Score, str]]
RIDGES = (1e-6, 1e-4, 1e-2, 1e-1)
COMPONENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 140, 200)
RIDGE = (1e-4, 1e-2)  # of the mixtures
BANDWIDTHS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8)
RATES = {"NSF": 5e-3, "MAF": 5e-3, "residual": 2e-3}  # two of them by trials of three (table_search.py), the last untried
TRANSFORMS = {"NSF": 3, "MAF": 5}


def divided(train: Array) -> tuple[Array, Array]:
    """Rows to fit to, and rows to choose by."""
    inner, held_out = train_test_split(train, test_size=0.15, random_state=0)
    return inner, held_out


def gaussian(train: Array, seconds: float) -> tuple[Score, str]:
    def law(rows: Array, ridge: float) -> Any:
        return multivariate_normal(rows.mean(0), np.cov(rows.T, bias=True) + ridge * np.eye(rows.shape[1]))

    inner, held_out = divided(train)
    ridge = max(RIDGES, key=lambda each: float(law(inner, each).logpdf(held_out).mean()))
    return lambda x: np.asarray(law(train, ridge).logpdf(x)).reshape(-1), f"ridge {ridge:g}"


def mixture(train: Array, seconds: float) -> tuple[Score, str]:
    """Up to 200 components; more are tried while they gain on held-out rows."""
    inner, held_out = divided(train)
    best, chosen = -math.inf, (1, "full", RIDGE[0])
    for kind in ("full", "diag"):
        for ridge in RIDGE:
            failed = 0
            for components in COMPONENTS:
                if failed == 2 or components * 5 > len(inner):
                    break
                model = GaussianMixture(components, covariance_type=kind, reg_covar=ridge, random_state=0).fit(inner)
                score = float(model.score(held_out))
                failed = 0 if score > best else failed + 1
                if score > best:
                    best, chosen = score, (components, kind, ridge)
    components, kind, ridge = chosen
    model = GaussianMixture(components, covariance_type=kind, reg_covar=ridge, n_init=3, random_state=0).fit(train)
    return model.score_samples, f"{components} {kind}, ridge {ridge:g}"


def kernels(train: Array, seconds: float) -> tuple[Score, str]:
    inner, held_out = divided(train)
    some = held_out[:500]
    width = max(BANDWIDTHS, key=lambda each: float(KernelDensity(bandwidth=each).fit(inner).score_samples(some).mean()))
    return KernelDensity(bandwidth=width).fit(train).score_samples, f"bandwidth {width:g}"


def ours(train: Array, seconds: float) -> tuple[Score, str]:
    model = FlowDensity(random_state=0).fit(train)
    return model.score_samples, f"{model.settings_}, {model.n_iter_} steps"


def trained(
    model: torch.nn.Module, log_prob: Callable[[torch.Tensor], torch.Tensor], train: Array, seconds: float, rate: float
) -> str:
    """Train a model in place for so many seconds of processor time; the weights that are best on held-out rows are kept."""
    began = time.process_time()
    inner, held_out = (torch.from_numpy(part).float() for part in divided(train))
    held_out, size = held_out[:5000], min(256, len(inner))
    optimizer = torch.optim.Adam(model.parameters(), rate)
    generator = torch.Generator().manual_seed(0)
    every = max(25, len(inner) // size)
    best, kept, step, best_step, share = math.inf, None, 0, 0, 0.0
    while share < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * share))
        optimizer.zero_grad()
        loss = -log_prob(inner[torch.randint(len(inner), (size,), generator=generator)]).mean()
        if torch.isfinite(loss):
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
        step += 1
        share = (time.process_time() - began) / seconds
        if step % every == 0 or share >= 1:
            with torch.no_grad():
                score = float(torch.cat([-log_prob(part) for part in torch.split(held_out, 1000)]).mean())
            if score < best:
                best, best_step, kept = score, step, {name: value.clone() for name, value in model.state_dict().items()}
    if kept is not None:
        model.load_state_dict(kept)
    return f"step {best_step} of {step}"


def in_parts(rows: Array, of: Callable[[torch.Tensor], torch.Tensor]) -> Array:
    with torch.no_grad():
        return torch.cat([of(part) for part in torch.split(torch.from_numpy(rows).float(), 1000)]).double().numpy()


def zuko_flow(kind: str, rate: float) -> Fit:
    def fit(train: Array, seconds: float) -> tuple[Score, str]:
        import zuko

        torch.manual_seed(0)
        width = 64 if len(train) < 2000 else 128
        model = getattr(zuko.flows, kind)(train.shape[1], hidden_features=(width, width), transforms=TRANSFORMS[kind])
        words = trained(model, lambda x: model().log_prob(x), train, seconds, rate)
        return lambda x: in_parts(x, model().log_prob), f"width {width}, {words}"

    return fit


def normflows_residual(train: Array, seconds: float) -> tuple[Score, str]:
    """Trained with its own estimate; scored with the log-determinant of the whole Jacobian."""
    import normflows as nf

    torch.manual_seed(0)
    dims, blocks, width = train.shape[1], 8, 128
    parts = [
        nf.flows.Residual(nf.nets.LipschitzMLP([dims, width, width, dims], init_zeros=True, lipschitz_const=0.9))
        for _ in range(blocks)
    ]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(dims, trainable=False), parts)
    words = trained(model, model.log_prob, train, seconds, RATES["residual"])
    model.eval()

    def score(x: Array) -> Array:
        found = []
        for part in torch.split(torch.from_numpy(x).float(), 100):
            z = part.requires_grad_()
            for block in reversed(parts):
                z = z + block.iresblock.nnet(z)
            J = torch.stack([torch.autograd.grad(z[:, i].sum(), part, retain_graph=True)[0] for i in range(dims)], 1)
            base = -0.5 * (z.square().sum(1) + dims * math.log(2 * math.pi))
            found.append((base + torch.linalg.slogdet(J).logabsdet).detach().double().numpy())
        return np.concatenate(found)

    return score, words


MODELS: dict[str, Fit] = {
    "FlowDensity()": ours,  # first, since its processor time is what the other flows get
    "NSF (zuko)": zuko_flow("NSF", RATES["NSF"]),
    "MAF (zuko)": zuko_flow("MAF", RATES["MAF"]),
    "residual flow (normflows)": normflows_residual,
    "mixture": mixture,
    "kernels": kernels,
    "Gaussian": gaussian,
}
FLOWS = ("NSF (zuko)", "MAF (zuko)", "residual flow (normflows)")
