"""Kernels that may be set up early wait before they touch memory: seen in what is compiled for an H100, without one."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton import knobs

from bireme_worker.kernels import launch

TOGETHER = {"exchange"}
"""Modules whose kernels are launched after the end of the one before: they spin on peers' words."""
SOURCES = sorted(Path(launch.__file__).parent.glob("*.py"))
TREES = {path.stem: ast.parse(path.read_text()) for path in SOURCES if path.stem not in TOGETHER}


def launches() -> list[tuple[str, ast.Call]]:
    """Every ``kernel[grid](...)``."""
    calls = [(name, node) for name, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        (name, call)
        for name, call in calls
        if isinstance(call.func, ast.Subscript)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id.startswith("_")
    ]


def kernel_of(module: str, name: str) -> ast.FunctionDef:
    return next(node for node in TREES[module].body if isinstance(node, ast.FunctionDef) and node.name == name)


def test_every_kernel_is_launched_early_and_waits_before_anything_else() -> None:
    found = launches()
    assert len(found) >= 14
    for module, call in found:
        assert [ast.unparse(one.value) for one in call.keywords if one.arg is None][-1] == "early()", module
        name = ast.unparse(call.func.value)  # type: ignore[attr-defined]
        assert ast.unparse(kernel_of(module, name).body[0]) == "wait_first(early)", f"{module}.{name}"


def test_what_spins_on_peers_is_launched_plainly() -> None:
    for path in SOURCES:
        if path.stem in TOGETHER:
            assert "early" not in {
                node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
            }


COMPILED = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from bireme_worker.kernels.gemv import _gemv

for early in (True, False):
    names = _gemv.arg_names
    fixed = {"inputs": 1024, "block": 1024, "one": 1, "early": early}
    signature = {name: "constexpr" if name in fixed else "*bf16" for name in names}
    source = ASTSource(_gemv, signature, {(names.index(name),): value for name, value in fixed.items()})
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"launch_pdl": early})
    assert kernel.metadata.launch_pdl == early
    print(kernel.asm["ptx"], end="=====")
"""


def test_a_compiled_kernel_waits_before_its_first_access_to_memory(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = [sys.executable, "-c", COMPILED]  # of its own: the kernels of this process are interpreted
    early, plain, _ = subprocess.check_output(script, env=environment, text=True).split("=====")
    touched = re.findall(r"griddepcontrol\.\w+|\b(?:ld|st|atom|red|cp)\.\S*global", early)
    assert touched[:2] == ["griddepcontrol.wait", "griddepcontrol.launch_dependents"]
    assert len(touched) > 2
    assert "griddepcontrol" not in plain


def test_older_gpus_and_the_interpreter_are_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, expected in (((8, 9), {}), ((9, 0), {"early": True, "launch_pdl": True})):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        launch._is_able.cache_clear()
        assert launch.early() == expected
        with launch.plainly():
            assert launch.early() == {}
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    assert launch.early() == {}
    launch._is_able.cache_clear()
