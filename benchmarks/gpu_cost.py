"""What a training step of each full-size recipe costs on paper, for several devices: writes docs/gpu.md.

python benchmarks/gpu_cost.py --out docs/gpu.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from idensenet.bench.cost import EFFICIENCY, IMAGES, LAUNCH, device_of, seconds, step_cost, step_time
from idensenet.config import recipe
from idensenet.models import build_config
from idensenet.precision import Precision

RECIPES = (
    "cifar10-idensenet",
    "cifar10-resflow",
    "cifar10-idensenet-small",
    "cifar10-resflow-small",
    "cifar10-idensenet-hybrid",
    "imagenet32-idensenet",
    "imagenet32-resflow",
)
SETTINGS = (  # devices, precision, TF32, samples in a batch of one device
    ("h100", "32-true", False, 64),
    ("h100", "32-true", True, 64),
    ("h100", "bf16-mixed", False, 64),
    ("8xh100", "bf16-mixed", False, 64),
    ("4xtitan-rtx", "32-true", False, 16),
)
TEXT = f"""# What a GPU run costs, on paper

**This page is a calculation, not a measurement.** It is written by `python benchmarks/gpu_cost.py --out docs/gpu.md`;
`idensenet train RECIPE --dry-run --assume h100` prints the same for one model and its options.

How it is calculated, in units of one pass of a batch through all networks g:

- A training step takes 2 passes for values and tangents, n - 1 for a series of n terms, and 4 for the gradients. The default
  series has three terms on average, so a step takes 8 passes; `--train.memory save` adds 2. The operations agree with what
  torch counts while small models train to within 4 % (a test checks it); the rest are spectral norms and their gradients.
- Products run at {EFFICIENCY:.0%} of the published peak rate. Maps that layers read and write move at the published bandwidth.
- A kernel takes {LAUNCH * 1e6:.0f} µs to start. Kernels are started while others run, so a step takes the longer of the two.
- Memory is weights, gradients, two moments and averaged weights, and the activations that are kept.
- Several devices have a batch each and exchange gradients once in a step.

The paper trained its CIFAR-10 model on four TITAN RTX with the authors' code, at 410 s an epoch. Their step takes some 12
passes in place of 8, so this calculation would expect {{expected:.0f}} s.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/gpu.md"))
    arguments = parser.parse_args()
    head = "| recipe | devices | precision | batch | TFLOP | GB moved | memory | a step | samples/s | an epoch | limit |"
    lines = [head, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|"]
    expected = 0.0
    for name in RECIPES:
        plain = recipe(name).config
        flow = build_config(plain)
        for assume, kind, tf32, batch in SETTINGS:
            config = plain.replace(train={"precision": kind, "tf32": tf32, "batch_size": batch})
            count, device = device_of(assume)
            cost, precision = step_cost(flow, config), Precision.of(kind, tf32)
            parts = seconds(cost, device, count, precision)
            step = step_time(parts)
            epoch = IMAGES[config.data.name or ""] / (batch * count) * step
            if (name, assume) == ("cifar10-idensenet", "4xtitan-rtx"):
                expected = epoch * 12 / 8
            lines.append(
                f"| `{name}` | {assume} | {kind}{', TF32' if tf32 else ''} | {batch * count} | {cost.operations / 1e12:.3g} "
                f"| {cost.traffic / 1e9:.3g} | {cost.memory / 1e9:.3g} GB | {step * 1e3:.3g} ms | {batch * count / step:,.0f} "
                f"| {epoch:,.0f} s | {max(parts, key=lambda each: parts[each])} |"
            )
    arguments.out.write_text(TEXT.format(expected=expected) + "\n".join(lines) + "\n")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
