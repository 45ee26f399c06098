"""Help texts: short by default, whole on request, a sentence for each option."""

import dataclasses

import pytest

from idensenet.cli import COMMANDS, main
from idensenet.config import Config


def said(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    return capsys.readouterr().out


def options(text):
    """The sentence of each option, by name."""
    found, name = {}, ""
    for line in text.splitlines():
        if line.startswith("  --"):
            name, _, rest = line.strip().partition("  ")
            found[name] = rest.strip()
        elif line.startswith(" " * 25) and name:
            found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            name = ""
    return found


def test_the_help_of_train_fits_on_two_screens_of_24_lines_and_names_the_rest(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = said(["train", "--help"], capsys)
    assert len(text.splitlines()) <= 48
    assert "'idensenet train --help-all' lists" in text
    assert {"--resume", "--data.table", "--train.lr", "--output.dir"} <= options(text).keys()
    assert "--train.warmup" not in text


def test_every_option_is_in_the_whole_help_with_a_sentence_and_its_default(capsys):
    text = said(["train", "cifar10-best", "--help-all"], capsys)
    found = options(text)
    for group in dataclasses.fields(Config):
        for field in dataclasses.fields(getattr(Config(), group.name)):
            sentence = found[f"--{group.name}.{field.name}"]
            assert sentence.endswith("."), sentence
            assert sentence[0].isupper() or sentence[0].isdigit(), sentence
            assert len(sentence.split()) >= 3, sentence
    assert found["--model.growth"].endswith("Default: [32, 48, 96].")  # of the recipe


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_fits_into_eighty_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = said([name, "--help"], capsys).splitlines()
    assert max(len(line) for line in lines if "example:" not in line and "idensenet" not in line) <= 80


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_option_of_a_command_has_a_sentence(name, capsys):
    found = options(said([name, "--help"], capsys))
    assert all(sentence.endswith(".") and len(sentence.split()) >= 3 for sentence in found.values()), found
    assert all(sentence[0].isupper() or sentence[0].isdigit() for sentence in found.values()), found
