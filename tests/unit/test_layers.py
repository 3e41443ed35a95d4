"""Who may import whom, and who loads without torch. Data flows left to right; see the layout in the design."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.compose import REPO

LEAVES = {"errors", "config", "messages", "log", "specs", "blackbox", "lifeline", "inputs", "metrics", "words"}
LEAVES |= {"compiling", "gate", "needs", "pace", "startup"}
MAY_IMPORT = {
    "data": {"data", "model.target_spec", "quickstart"},
    "model": {"model"},
    "train": {"train", "model"},
    "protocol": {"protocol"},
    "transport": {"transport"},
}
"""Packages of dfl_mp -> what they may import beside the leaves."""
TORCH_FREE = ["dfl_mp.protocol.coordinator", "dfl_mp.transport.links", "dfl_mp.roles.coordinator"]
TORCH_FREE += ["launcher.__main__", *(f"dfl_mp.{leaf}" for leaf in sorted(LEAVES))]


def imports_of(path: Path) -> set[str]:
    """Modules of the project that a file imports anywhere, `dfl_mp.` cut off: `transport.links`, `launcher.plan`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {_module(name) for name in names if name.split(".")[0] in ("dfl_mp", "launcher")}
    return found - {""}


def _module(name: str) -> str:
    """The longest beginning of a dotted name that is a module."""
    parts = name.split(".")
    while parts and not (REPO.joinpath(*parts).with_suffix(".py").exists() or REPO.joinpath(*parts).is_dir()):
        parts.pop()
    return ".".join(parts).removeprefix("dfl_mp").removeprefix(".")


def files(package: str) -> list[Path]:
    return sorted((REPO / package).rglob("*.py"))


def strays(found: set[str], allowed: set[str]) -> set[str]:
    return {name for name in found if not any(name == a or name.startswith(f"{a}.") for a in allowed)}


@pytest.mark.parametrize("leaf", sorted(LEAVES))
def test_leaves_import_leaves(leaf: str) -> None:
    assert strays(imports_of(REPO / "dfl_mp" / f"{leaf}.py"), LEAVES) == set()


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_packages(package: str) -> None:
    for path in files(f"dfl_mp/{package}"):
        assert strays(imports_of(path), LEAVES | MAY_IMPORT[package]) == set(), path


def test_launcher_imports_leaves_and_links_only() -> None:
    for path in files("launcher"):
        assert strays(imports_of(path), LEAVES | {"launcher", "transport.links"}) == set(), path


def test_nothing_imports_the_launcher() -> None:
    for path in files("dfl_mp"):
        assert not any(name.startswith("launcher") for name in imports_of(path)), path


def test_no_role_imports_another() -> None:
    roles = {f"roles.{role}" for role in ("prepare", "coordinator", "target", "drafter", "evaluator")}
    for path in files("dfl_mp/roles"):
        assert not imports_of(path) & roles, path


def test_the_check_sees_imports() -> None:
    assert {"transport.links", "messages"} <= imports_of(REPO / "launcher" / "post.py")
    assert strays({"model.loss", "errors"}, LEAVES) == {"model.loss"}


@pytest.mark.parametrize(("modules", "package"), [(TORCH_FREE, "torch"), (("dfl_mp.roles.drafter",), "transformers")])
def test_loads_without(modules: tuple[str, ...], package: str) -> None:
    """A drafter that starts again does not wait for transformers."""
    check = "import importlib, sys; list(map(importlib.import_module, sys.argv[2:])); print(sys.argv[1] in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", check, package, *modules], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "False\n"
