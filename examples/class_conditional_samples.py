"""A density for each class: moons given which moon. Usage: python class_conditional_samples.py [picture.png] [steps]"""

import sys

import numpy as np
from matplotlib.figure import Figure
from scipy.special import logsumexp
from sklearn.datasets import make_moons

from idensenet.report.drawing import themed
from idensenet.sklearn import FlowDensity

out = sys.argv[1] if len(sys.argv) > 1 else "class_conditional_samples.png"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
NOISE = 0.1


def exact(x: np.ndarray, moon: int) -> np.ndarray:
    """log p(x | moon): a half circle with noise, by quadrature over the angle."""
    angle = (np.arange(400) + 0.5) / 400 * np.pi
    centre = np.column_stack([np.cos(angle), np.sin(angle)])
    centre = centre if moon == 0 else [1, 0.5] - centre
    squares = ((x[:, None] - centre) ** 2).sum(2)
    return logsumexp(-squares / (2 * NOISE**2), axis=1) - np.log(400 * 2 * np.pi * NOISE**2)


X, y = make_moons(3000, noise=NOISE, random_state=0)
density = FlowDensity(max_iter=steps, n_iter_no_change=20, random_state=0).fit(X, context=np.eye(2)[y])

new, label = make_moons(2000, noise=NOISE, random_state=1)
truth = np.where(label == 0, exact(new, 0), exact(new, 1))
found = density.score_samples(new, context=np.eye(2)[label])
print(f"mean log-density of new points given their moon: flow {found.mean():.3f}, exact {truth.mean():.3f}")
print(f"one certificate for both: largest constant of a block {density.certificate_.L:.3f}")

side = np.linspace(-1.6, 2.6, 120), np.linspace(-1.2, 1.7, 120)
grid = np.stack(np.meshgrid(*side), -1).reshape(-1, 2)
with themed():
    figure = Figure(figsize=(9, 6.2), layout="constrained")
    for moon, row in enumerate(figure.subplots(2, 3, sharex=True, sharey=True)):
        at = np.eye(2)[moon]
        values = (exact(grid, moon), density.score_samples(grid, context=np.tile(at, (len(grid), 1))))
        for axis, each, title in zip(row, values, ("exact density", "learned density")):
            axis.pcolormesh(*side, np.exp(each).reshape(120, 120), rasterized=True)
            axis.set_title(f"{title}, moon {moon}")
        row[2].scatter(*density.sample(1000, random_state=0, context=at).T, s=3)
        row[2].set_title(f"samples, moon {moon}")
    figure.savefig(out)
print(f"picture: {out}")
