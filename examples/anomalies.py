"""Anomalies of a table: learn what is normal, score what is not. Usage: python anomalies.py [picture.png] [steps]"""

import sys

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_curve
from sklearn.model_selection import train_test_split

from idensenet.anomaly import auroc, oddness
from idensenet.report.drawing import themed
from idensenet.sklearn import FlowOutlierDetector

out = sys.argv[1] if len(sys.argv) > 1 else "anomalies.png"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 600

data = load_breast_cancer()
X = data.data[:, :10]  # the mean of each measurement
normal, odd = X[data.target == 1], X[data.target == 0]
train, test = train_test_split(normal, test_size=0.4, random_state=0)

detector = FlowOutlierDetector(contamination=0.05, max_iter=steps, random_state=0).fit(train)
print(f"marked as outliers: {(detector.predict(test) == -1).mean():.0%} of benign tumours that were not trained on,")
print(f"                    {(detector.predict(odd) == -1).mean():.0%} of malignant ones")

scores = [torch.from_numpy(detector.score_samples(rows)) for rows in (train, test, odd)]
found = [oddness(each, scores[0]) for each in scores[1:]]
with themed():
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    top = float(torch.cat(scores).max()) + 1
    bins = np.geomspace(1, top - float(scores[2].min()), 40)
    for values, label in ((scores[1], "benign"), (scores[2], "malignant")):
        left.hist(top - values.numpy(), bins, alpha=0.6, label=label)
    left.axvline(top - detector.offset_, color="C2", linestyle="--", label="threshold")
    left.set(xlabel="nats below the likeliest row, plus one", ylabel="held-out rows", xscale="log", title="how odd rows are")
    left.legend()
    for name in ("log_density", "typicality"):
        area = auroc(found[0][name], found[1][name])
        print(f"{name}: AUROC {area}")
        truth = np.r_[np.zeros(len(test)), np.ones(len(odd))]
        right.plot(*roc_curve(truth, np.r_[found[0][name], found[1][name]])[:2], label=f"{name}: {area}")
    right.set(xlabel="benign tumours marked", ylabel="malignant tumours marked", title="by any threshold")
    right.legend()
    figure.savefig(out)
print(f"picture: {out}")
