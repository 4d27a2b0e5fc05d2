"""Layers of unknown type: refused, or passed over and named by every command that counts."""

import json
import os
from pathlib import Path

import pytest

import paleo_net
from steptime.build import read_model
from steptime.cli.main import run
from steptime.core.errors import InputError

COMMANDS = {
    "count": "",
    "predict": "--device K40",
    "predict --grid": "--device K40",
    "why": "--device K40 --from paleo",
    "split": "--device K40 --server K20 --link aws",
    "scale": "--device K40 --replicas 1",
}


@pytest.fixture
def network(tmp_path):
    """A convolution, a layer that nobody knows, and pooling."""
    layers = {
        "data": paleo_net.image(2, 8, 8, 3),
        "conv1": paleo_net.conv("data", 3, 3, 3, 4),
        "strange": paleo_net.layer("Zork", "conv1"),
        "pool1": paleo_net.pool("Pooling", "strange", 2, 2),
    }
    return str(paleo_net.written(tmp_path, layers, "strange.json"))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_result_names_them(network, command, capsys):
    name, *more = command.split()
    words = [name, network, *more, *COMMANDS[command].split()]
    assert run(words) == 2
    assert "layer 'strange': unknown type of layer 'Zork'" in capsys.readouterr().err
    assert run([*words, "--allow-unknown", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unmodelled"] == ["strange"]
    assert run([*words, "--allow-unknown"]) == 0
    shown = capsys.readouterr()
    assert "strange" in shown.err.replace("strange.json", "") + shown.out.replace(network, "")


def test_a_pipe_is_no_file(tmp_path):
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    with pytest.raises(InputError, match="is a pipe, not a file"):
        read_model(str(path))


def test_the_end_of_a_name_may_be_in_capitals(network, tmp_path):
    other = tmp_path / "NET.JSON"
    other.write_text(Path(network).read_text())
    assert read_model(str(other)).file == str(other)
