"""Signals that end a job of SLURM; `scontrol` is a script that writes down what it is asked."""

import os
import signal
import sys

import pytest
from tiny import new_run, toy_config

from idensenet.training.requeue import requeue


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """The file that the script writes to; a job that has the number 71."""
    asked, script = tmp_path / "asked", tmp_path / "bin" / "scontrol"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nimport sys\nopen({str(asked)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    return asked


def said(file):
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_job_that_is_about_to_end_is_requeued(scontrol, number):
    assert requeue(number) == "job 71 is requeued and goes on from here when it starts again"
    assert said(scontrol) == "requeue 71\n"


def test_an_interrupt_is_of_a_person_and_without_a_job_nobody_is_asked(scontrol, monkeypatch):
    assert requeue(signal.SIGINT) is None
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    assert requeue(signal.SIGTERM) is None
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.delenv("SLURM_JOB_NAME")
    assert requeue(signal.SIGTERM) is None
    assert said(scontrol) == ""


def test_a_refusal_is_told(scontrol, monkeypatch):
    script = scontrol.parent / "bin" / "scontrol"
    script.write_text("#!/bin/sh\necho Job is not eligible >&2; exit 1\n")
    assert requeue(signal.SIGUSR1) == "job 71 cannot be requeued (Job is not eligible); submit it again"
    monkeypatch.setenv("PATH", str(scontrol.parent))
    assert "cannot be requeued" in requeue(signal.SIGUSR1)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_warning_signal_saves_first_and_then_requeues(scontrol, tmp_path, wanted, capsys):
    config = toy_config(max_steps=6, requeue=wanted).replace(output={"display": "plain"})
    trainer = new_run(tmp_path / "run", config)
    step = trainer.step

    def warned(count, stop):
        if count == 1:
            signal.raise_signal(signal.SIGUSR1)
        return step(count, stop)

    trainer.step = warned
    assert trainer.train() == 128 + signal.SIGUSR1
    assert trainer.run.checkpoints.steps() == [2]
    assert said(scontrol) == ("requeue 71\n" if wanted else "")
    out = capsys.readouterr().out
    assert "stopped after step 2" in out
    assert ("job 71 is requeued" in out) == wanted
