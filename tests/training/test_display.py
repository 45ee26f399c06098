import pytest

from idensenet.errors import OptionError
from idensenet.training.display import Plain, Quiet, Rich, clock, line, make_display


def test_times_and_metrics_are_readable():
    assert [clock(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]
    assert line({"step": 3, "kind": "train", "nats": 3.14159, "memory": "1 GB"}) == "nats 3.142, memory 1 GB"


def test_plain_lines_name_step_metrics_and_time_left(capsys):
    display = make_display("plain", 10, 0)
    display.metrics(5, {"nats": 2.5})
    display.say("half way")
    display.close()
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("step 5/10: nats 2.5, left 0:0")
    assert out[1] == "half way"


def test_quiet_says_nothing(capsys):
    display = make_display("quiet", 10, 0)
    display.metrics(5, {"nats": 2.5})
    display.say("half way")
    display.close()
    assert capsys.readouterr().out == ""


def test_the_live_display_shows_progress_and_messages(capsys):
    display = make_display("rich", 10, 2)
    display.metrics(10, {"nats": 2.5})
    display.say("[done]")
    display.close()
    out = capsys.readouterr().out
    assert "10/10" in out
    assert "nats 2.5" in out
    assert "[done]" in out


def test_a_pipe_gets_plain_lines_and_a_terminal_the_live_display(monkeypatch):
    assert isinstance(make_display("auto", 1, 0), Plain)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    display = make_display("auto", 1, 0)
    display.close()
    assert isinstance(display, Rich)
    assert isinstance(make_display("quiet", 1, 0), Quiet)
    with pytest.raises(OptionError, match="'loud' is not known"):
        make_display("loud", 1, 0)


def test_a_narrow_terminal_still_shows_the_step_and_all_metrics(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    display = make_display("rich", 4400, 0)
    numbers = {"epoch": 16.82, "bits/dim": 2.141, "accuracy": 0.91, "gradient": 0.53, "samples/s": 251.1, "memory": "0.53 GB"}
    display.metrics(370, numbers)
    display.close()
    shown = capsys.readouterr().out
    assert "370/4400" in shown
    assert "left" in shown
    assert all(name in shown for name in numbers)
