"""Images of one's own: a folder of pictures, a flow, samples and scores. Usage: python ... [picture.png] [steps]"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits

import idensenet as idn
from idensenet.cli import main
from idensenet.report.drawing import themed
from idensenet.report.pictures import image_grid

out = sys.argv[1] if len(sys.argv) > 1 else "images_in_a_folder.png"
steps = sys.argv[2] if len(sys.argv) > 2 else "400"

with tempfile.TemporaryDirectory() as place:
    folder, run = Path(place) / "images", str(Path(place) / "run")
    folder.mkdir()
    for i, pixels in enumerate(load_digits().images):  # any PNG, JPEG, BMP or WebP files will do
        Image.fromarray((pixels * 15.9).astype(np.uint8)).save(folder / f"{i:04d}.png")

    # What follows is what one types: idensenet train digits-idensenet --data.folder images ...
    data = ["--data.folder", str(folder), "--data.size", "8", "--data.channels", "1", "--data.root", place]
    train = ["train", "digits-idensenet", *data, "--train.max_steps", steps, "--output.dir", run, "--output.display", "plain"]
    assert main(train) == 0
    assert main(["evaluate", run, "--samples", "100"]) == 0
    few = ["--reference", "100", "--samples", "100", "--probes", "4"]  # without --probes, scores of small images are exact
    assert main(["score", run, *data, *few, "--out", str(Path(place) / "scores.csv")]) == 0
    flow = idn.load(run)
    rows = np.loadtxt(Path(place) / "scores.csv", delimiter=",", skiprows=1)

order = rows[:, 1].argsort()
drawn = flow.sample(40)
digits = (load_digits().images * 15.9).astype(np.uint8)[:, None]
with themed():
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    pages = (drawn, torch.from_numpy(digits[order[:40]]), torch.from_numpy(digits[order[-40:]]))
    for axis, page, title in zip(figure.subplots(1, 3), pages, ("samples", "the least likely files", "the likeliest files")):
        axis.imshow(image_grid(page, 256, 8), interpolation="nearest")
        axis.set_title(title)
        axis.set_axis_off()
    figure.savefig(out)
print(f"picture: {out}")
