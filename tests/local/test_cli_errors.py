"""What `bireme` says when it is asked for something that can't be: the thing, the remedy, and 64 or 65."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.cli.main import main
from bireme.names import Env

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
}


@pytest.fixture(autouse=True)
def run_root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(Env.RUN_DIR, str(tmp_path_factory.mktemp("c")))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory with a checkpoint that has a shape and no weights worth the name."""
    checkpoint = tmp_path / "models" / "tiny"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(json.dumps(SHAPE))
    (checkpoint / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "models" / "empty").mkdir()
    return tmp_path / "models"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def write(tmp_path: Path, spec: dict[str, Any] | None = None, path: str = "/models/tiny") -> str:
    model = {"source": {"path": path}, "revision": "1"}
    document = {
        "apiVersion": "bireme.dev/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": "demo"},
        "spec": {"model": model, **(spec or {})},
    }
    file = tmp_path / "demo.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return str(file)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"replica": 2}, "line 10: spec.replica: unknown field; did you mean replicas?"),
        ({"replicas": -1}, "spec.replicas: use 0 or more"),
        ({"spares": 1}, "spec.spares: remove it; local processes have no nodes"),
        ({"template": {"spec": {"nodeSelector": {"a": "b"}}}}, "spec.template.spec.nodeSelector: remove it"),
        ({"engine": {"maxModelLength": 9000}}, "maxModelLength is 9000, but the model was made for 8192 tokens"),
        ({"parallelism": {"tensor": 2}}, "9 attention heads do not divide by tensor parallelism 2"),
        ({"parallelism": {"pipeline": 31}}, "parallelism.pipeline is 31, but the model has 30 layers"),
        ({"parallelism": {"pipeline": 2, "stageLayers": [1, 2]}}, "give every stage at least one"),
    ],
)
def test_a_deployment_that_can_t_work_is_refused_before_anything_starts(
    spec: dict[str, Any], told: str, tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "-f", write(tmp_path, spec), "--mount", f"/models={models}"]) == 64
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "told"), [({"replicas": 0}, "spec.replicas is 0"), ({"paused": True}, "spec.paused is true")]
)
def test_a_question_that_no_group_could_ever_answer_is_refused(
    spec: dict[str, Any], told: str, tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "-f", write(tmp_path, spec), "--mount", f"/models={models}", "--ask", "Well?"]) == 64
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "code", "told"),
    [
        ("/models/absent", 64, "with --mount {models}/absent on this machine, which does not exist"),
        ("/models/empty", 65, "{models}/empty holds no model.safetensors"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_named_with_its_place_on_this_machine(
    path: str, code: int, told: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "-f", write(models, path=path), "--mount", f"/models={models}"]) == code
    assert told.format(models=models) in capsys.readouterr().err


def test_a_path_that_needs_a_mount_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "-f", write(tmp_path, path="/no-such/tiny")]) == 64
    assert "give the directory that holds it by --mount /no-such=DIRECTORY" in capsys.readouterr().err


def test_the_longest_mount_wins(tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mounts = ["--mount", f"/models={tmp_path}", "--mount", f"/models/tiny={models / 'empty'}"]
    assert main(["up", "-f", write(tmp_path), *mounts]) == 65
    assert f"{models / 'empty'} holds no model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mount", "told"),
    [
        ("models", "--mount models: write POD_PATH=HOST_PATH"),
        ("models=/tmp", "with an absolute POD_PATH"),
        ("/models=/no-such", "/no-such does not exist on this machine"),
    ],
)
def test_a_mount_that_can_t_be_right_is_refused(
    mount: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "-f", write(tmp_path), "--mount", mount]) == 64
    assert told in capsys.readouterr().err


def test_a_port_that_is_in_use_is_named_with_the_remedy(
    tmp_path: Path, models: Path, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path)
    assert main(["up", "-f", file, "--mount", f"/models={models}", "--port", str(taken_port)]) == 64
    told = capsys.readouterr().err
    assert f"port {taken_port} on 127.0.0.1 is in use" in told
    assert "choose another port with --port" in told


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "-f", str(tmp_path / "absent.yaml")]) == 64
    assert "absent.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["down"], "invalid choice: 'down'"),
        (["up"], "the following arguments are required: -f/--file"),
        (["up", "-f", "x", "--port", "70000"], "70000 is no port"),
        (["model", "llama-3.1-405b"], "invalid choice"),
    ],
)
def test_a_command_line_that_can_t_be_right_ends_with_64(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 64
    assert told in capsys.readouterr().err


def test_the_status_of_what_never_was_up_says_where_it_looked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "demo"]) == 1
    assert "no deployment named demo has been up on this machine (looked in " in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["up", "status", "model"])
def test_the_help_of_every_verb_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"\n  bireme {verb} " in capsys.readouterr().out


def test_without_a_verb_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "bireme up -f" in capsys.readouterr().out
