"""Programs are built once, by whatever Go there is, and a machine that can't build them is told what it lacks."""

import sys
from pathlib import Path
from threading import Thread

import pytest

from tests.controlplane.build import BuildFailed, default_cache, ensure, main
from tests.controlplane.programs import KUBERNETES, Program
from tests.controlplane.toolchain import CannotBuild, find_go

# Stands in for Go: `build` writes the program and a line of the log, everything else says yes.
GO = """#!/bin/sh
here=$(dirname "$0")
[ "$1" = list ] && exit "$(cat "$here/list" 2>/dev/null || echo 0)"
[ -e "$here/broken" ] && { echo "main.go:1: syntax error" >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
echo "$2" >> "$here/log"
echo program > "$2"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the only Go on the PATH."""
    directory = tmp_path / "tools"
    _script(directory / "go", GO)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return directory


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _quiet(line: str) -> None:
    """Take a line of progress for nobody."""


def _built(tools: Path) -> list[str]:
    log = tools / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_a_program_is_built_once(tools: Path, tmp_path: Path) -> None:
    first = ensure([Program.KUBECTL], cache=tmp_path / "cache", say=_quiet)
    assert first[Program.KUBECTL].read_text() == "program\n"
    assert ensure([Program.KUBECTL], cache=tmp_path / "cache", say=_quiet) == first
    assert len(_built(tools)) == 1


def test_two_builders_at_once_build_once(tools: Path, tmp_path: Path) -> None:
    builders = [Thread(target=ensure, args=([Program.ETCD],), kwargs={"cache": tmp_path, "say": _quiet}) for _ in "ab"]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(_built(tools)) == 1


def test_what_is_cached_needs_no_go(tools: Path, tmp_path: Path) -> None:
    first = ensure([Program.ETCD], cache=tmp_path / "cache", say=_quiet)
    (tools / "go").unlink()
    assert ensure([Program.ETCD], cache=tmp_path / "cache", say=_quiet) == first


def test_sources_that_do_not_compile_are_no_reason_to_skip(tools: Path, tmp_path: Path) -> None:
    (tools / "broken").touch()
    with pytest.raises(BuildFailed, match=r"etcd does not compile: main\.go:1: syntax error"):
        ensure([Program.ETCD], cache=tmp_path / "cache", say=_quiet)


def test_a_machine_without_go_and_without_an_index_is_told_what_it_lacks(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tools / "list").write_text("1")  # the Go on the PATH is too old
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        CannotBuild, match=rf"install Go {KUBERNETES.go} or newer, or let pip reach .*KUBEBUILDER_ASSETS"
    ):
        find_go(KUBERNETES, tmp_path / "cache", _quiet)


def test_ready_made_programs_are_taken(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = tmp_path / "assets"
    _script(assets / "kube-apiserver", f"#!/bin/sh\necho Kubernetes {KUBERNETES.version}\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    paths = ensure([Program.API_SERVER, Program.SCHEDULER], cache=tmp_path / "cache", say=_quiet)
    assert paths[Program.API_SERVER] == assets / "kube-apiserver"
    assert len(_built(tools)) == 1, "setup-envtest has no scheduler"


def test_ready_made_programs_of_another_release_are_refused(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _script(tmp_path / "kube-apiserver", "#!/bin/sh\necho Kubernetes v1.30.0\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(CannotBuild, match=r"says 'Kubernetes v1\.30\.0'; give one of v1\.37"):
        ensure([Program.API_SERVER], cache=tmp_path / "cache", say=_quiet)


def test_the_command_prints_where_programs_are_and_links_them(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BIREME_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["--bin", str(tmp_path / "bin"), "etcd"]) == 0
    built = default_cache() / Program.ETCD.module.key / "etcd"
    assert capsys.readouterr().out == f"etcd\t{built}\n"
    assert (tmp_path / "bin" / "etcd").resolve() == built.resolve()


def test_the_command_fails_where_nothing_can_be_built(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BIREME_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert main(["etcd"]) == 1
    assert "install Go" in capsys.readouterr().err


def test_the_pins_are_of_one_kubernetes() -> None:
    text = (KUBERNETES.folder / "go.mod").read_text()
    staging = {line.split()[-1] for line in text.splitlines() if line.startswith("\tk8s.io/") and "=>" in line}
    assert staging == {KUBERNETES.version.replace("v1.", "v0.", 1)}
