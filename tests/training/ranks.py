"""Run by a test as a program: two processes train on images, and each writes down what it ended with."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny import image_source

from idensenet.config import recipe
from idensenet.training.loop import Trainer
from idensenet.training.run import RunFolder


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    train = {"objective": "hybrid", "weight": "1/D", "max_steps": 4, "batch_size": 4, "devices": 2, "accelerator": "cpu"}
    train |= {"log_every": 1, "eval_every": 2, "eval_samples": 7, "lr": 0.01, "warmup_steps": 0}
    config = recipe("digits-idensenet").config.replace(
        blocks=(1, 1), growth=8, classes=3, train=train, output={"display": "quiet", "pictures": False}
    )
    trainer = Trainer(config, image_source(), RunFolder(folder / "run"))
    if trainer.rank == 0:
        trainer.run.create(config, None, "")
    trainer.start()
    assert trainer.train() == 0
    state = {name: value.contiguous() for name, value in trainer.flow.state_dict().items()}
    save_file({**state, "draws": torch.rand(4, generator=trainer.generator)}, folder / f"rank{trainer.rank}.safetensors")
    torch.distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
