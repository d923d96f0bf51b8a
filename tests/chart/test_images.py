"""The Dockerfiles keep what the pods are promised, and the builder says what it will do. Needs no Docker."""

import re
import tomllib
from pathlib import Path

import pytest

from images.build import IMAGES, ORDINARY_BASE, USUAL, Wanted, main
from images.dependencies import dependencies
from tests.chart.helm import ROOT

ENTRY = {
    "operator": "bireme-operator",
    "router": "bireme-router",
    "worker": "bireme-worker",
    "worker-cuda": "bireme-worker",
}


def _text(image: str) -> str:
    return (ROOT / "images" / image / "Dockerfile").read_text()


def _final(image: str) -> str:
    return _text(image).rpartition("\nFROM ")[2]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_and_names_a_base_that_can_be_changed(image: str) -> None:
    assert f"ARG BASE={ORDINARY_BASE}\n" in _text(image)
    assert _final(image).startswith("${BASE}\n")
    assert "\nUSER 65532:65532\n" in _final(image)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert ENTRY[image] in scripts
    assert _text(image).endswith(f'ENTRYPOINT ["{ENTRY[image]}"]\n')


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_says_where_it_is_from(image: str) -> None:
    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", _final(image)))
    assert labels >= {"title", "description", "licenses", "version", "revision", "created"}


@pytest.mark.parametrize("image", IMAGES)
def test_what_is_installed_is_pinned_and_compiled(image: str) -> None:
    build = _text(image).rpartition("\nFROM ")[0]
    for line in re.findall(r"install --quiet[^\n]*", build):
        assert "--constraint" in line or "--no-deps" in line, line
    assert "compileall" in build


@pytest.mark.parametrize("image", set(IMAGES) - {"worker-cuda"})
def test_no_compiler_is_in_the_final_stage(image: str) -> None:
    assert "apt-get" not in _final(image)
    assert "gcc" not in _final(image)


def test_the_operator_installs_its_own_part_only() -> None:
    wanted = dependencies(ROOT / "pyproject.toml", ["operator"], [])
    assert any(one.startswith("kopf") for one in wanted)
    assert not any(one.startswith("torch") for one in wanted)
    assert not any(one.startswith("torch") for one in dependencies(ROOT / "pyproject.toml", ["worker"], ["torch"]))


def test_a_sealed_build_reaches_for_nothing() -> None:
    command = Wanted("router", "1", base="local", sealed=True).command({"VERSION": "1"})
    assert "--network=none" in command
    for told in ("BASE=local", "PIP_NO_INDEX=1", "VERSION=1"):
        assert command[command.index(told) - 1] == "--build-arg"
    assert command[-3:] == ["--tag", "bireme-router:1", "."]
    assert "BASE=" not in " ".join(Wanted("router", "1").command({}))


def test_an_unknown_image_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["operator", "rooter"])
    assert "there is no image rooter: choose from operator, router, worker, worker-cuda" in capsys.readouterr().err


def test_without_docker_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(list(USUAL)) == 1
    assert "no Docker daemon answers" in capsys.readouterr().err


def test_what_docker_may_see_has_all_that_is_copied() -> None:
    seen = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    for image in IMAGES:
        for line in re.findall(r"^COPY (?!--from)(.*)$", _text(image), re.MULTILINE):
            *sources, _ = line.replace("wheel[s]", "wheels").split()
            assert set(sources) <= seen
