"""The density of a table in five lines: fit, score, sample. Usage: python density_of_a_table.py [picture.png] [steps]"""

import sys

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_wine
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split

from idensenet.report.drawing import themed
from idensenet.sklearn import FlowDensity

out = sys.argv[1] if len(sys.argv) > 1 else "density_of_a_table.png"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 1500

wine = load_wine(as_frame=False)
columns = [wine.feature_names.index(name) for name in ("flavanoids", "color_intensity")]
train, test = train_test_split(wine.data[:, columns], test_size=0.3, random_state=0)

density = FlowDensity(max_iter=steps, random_state=0).fit(train)
gaussian = GaussianMixture(1).fit(train)
print(f"held-out log-density of a row: flow {density.score(test):.3f}, Gaussian {gaussian.score(test):.3f}")
print(f"largest certified Lipschitz constant of a block: {density.certificate_.L:.3f} (below one: invertible)")
print(f"a computed inverse is off by at most {density.inverse_error_bound_:.1e} deviations on the training rows")

x, y = np.meshgrid(np.linspace(0, 5.5, 200), np.linspace(0, 14, 200))
grid = np.exp(density.score_samples(np.column_stack([x.ravel(), y.ravel()]))).reshape(x.shape)
with themed():
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    left.contourf(x, y, grid, 30)
    left.scatter(*test.T, s=8, color="white", label="held-out rows")
    right.scatter(*density.sample(500, random_state=0).T, s=4, color="C1", label="samples")
    right.scatter(*train.T, s=8, color="C0", label="training rows")
    for axis, title in ((left, "density"), (right, "samples")):
        axis.set(xlabel="flavanoids", ylabel="color intensity", title=title, xlim=(0, 5.5), ylim=(0, 14))
        axis.legend(labelcolor="white" if axis is left else None)
    figure.savefig(out)
print(f"picture: {out}")
