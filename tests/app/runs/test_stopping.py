"""Signals that ask a training to stop: nothing is lost, and the message says how to go on."""

import os
import signal
import time

import pytest

from pyro_fmvae.app.runs import launching
from tests.small_runs import command, state, stop_at, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture
def signals():
    """What the process does at each signal is the default, also under nohup, and is put back in the end."""
    before = {number: signal.getsignal(number) for number in launching.SIGNALS}
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_schedulers_signal_saves_and_says_how_to_go_on(tmp_path, monkeypatch, signals, number, status):
    files = write_files(tmp_path)
    assert train(tmp_path / "whole", files["table"], factors="2")[0] == 0
    with monkeypatch.context() as patch:
        stop_at(patch, 5, lambda: os.kill(os.getpid(), number))
        found, _, err = train(tmp_path / "run", files["table"], factors="2")
    assert found == status
    assert f"Continue with: pyro-fmvae train --resume {tmp_path / 'run'}" in err
    assert state(tmp_path / "run") != state(tmp_path / "whole")
    succeed("train", "--resume", tmp_path / "run")
    assert state(tmp_path / "run") == state(tmp_path / "whole")


def test_says_what_it_waits_for(monkeypatch, capsys):
    monkeypatch.setattr(launching, "PATIENCE", 0.01)
    with launching.interruption() as heard:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(200):
            time.sleep(0.01)
            if said := capsys.readouterr().err:
                break
        with pytest.raises(launching.Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGINT]
    assert said.strip() == launching.WAITING.strip()


def test_does_not_say_so_if_it_stops_at_once(monkeypatch, capsys):
    monkeypatch.setattr(launching, "PATIENCE", 0.05)
    with launching.interruption():
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_commands_that_do_not_train_end_in_one_line(monkeypatch, signals):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    launching.stop_as_by_ctrl_c()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as nohup has it
    monkeypatch.setattr("pyro_fmvae.app.cli.build_parser", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert command("evaluate", "run") == (143, "", "pyro-fmvae: stopped\n")
