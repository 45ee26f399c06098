"""A run small enough for tests: two blocks on the checkerboard."""

import torch

from idensenet.config import Config, recipe
from idensenet.data.source import Source, Split
from idensenet.data.toy import toy_set
from idensenet.training.loop import Draw, Trainer
from idensenet.training.run import RunFolder


def toy_source() -> Source:
    toy = toy_set("checkerboard")
    generator = torch.Generator().manual_seed(5)
    train, test = (Split(toy.sample(n, generator).numpy()) for n in (300, 200))
    return Source("checkerboard", train, test, (2,), stream=toy)


def finite_source(rows: int = 100) -> Source:
    generator = torch.Generator().manual_seed(6)
    x = toy_set("moons").sample(rows + 20, generator).numpy()
    return Source("rows", Split(x[:rows]), Split(x[rows:]), (2,))


def image_source(n: int = 24) -> Source:
    generator = torch.Generator().manual_seed(7)
    x = torch.randint(0, 17, (n, 1, 8, 8), generator=generator, dtype=torch.uint8).numpy()
    y = torch.randint(0, 3, (n,), generator=generator).numpy()
    return Source("noise", Split(x, y), Split(x[:8], y[:8]), (1, 8, 8), levels=17, classes=3)


def toy_config(**train) -> Config:
    settings = {"max_steps": 6, "batch_size": 16, "log_every": 1, "eval_every": 3, "eval_samples": 50, **train}
    return recipe("toy-idensenet").config.replace(
        blocks=(2,), train=settings, output={"display": "quiet", "pictures": False}, data={"name": "checkerboard"}
    )


def new_run(folder, config: Config, source: Source | None = None, draw: Draw | None = None) -> Trainer:
    run = RunFolder(folder)
    trainer = Trainer(config, source or toy_source(), run, draw)
    run.create(config, None, "idensenet train")
    trainer.start()
    return trainer


def losses(trainer: Trainer) -> list[tuple[int, float]]:
    return [(entry["step"], entry["nats"]) for entry in trainer.run.metrics() if entry["kind"] == "train"]
