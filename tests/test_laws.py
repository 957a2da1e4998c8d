"""The laws of the house (ARCHITECTURE.md), read from the imports."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "farandole"
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax"}
ADAPTERS = {f"farandole.{name}" for name in ("numpy", "torch", "tensorflow", "keras", "jax")}


def imports(path: Path) -> set[str]:
    """Every module a file imports, anywhere in it, `from a import b` as both a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(name: str) -> list[Path]:
    files = sorted((SOURCE / name).rglob("*.py")) if (SOURCE / name).is_dir() else [SOURCE / f"{name}.py"]
    assert files
    return files


def offences(room_name: str, forbidden: set[str]) -> list[str]:
    def bad(module: str) -> bool:
        return any(module == f or module.startswith(f"{f}.") for f in forbidden)

    return [f"{p.relative_to(ROOT)} imports {m}" for p in room(room_name) for m in sorted(imports(p)) if bad(m)]


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("bridge", FRAMEWORKS | ADAPTERS | {"farandole.launch"}),
        ("torch", FRAMEWORKS - {"torch"} | ADAPTERS - {"farandole.torch"} | {"farandole.launch"}),
        ("numpy", FRAMEWORKS | ADAPTERS - {"farandole.numpy"} | {"farandole.launch"}),
        ("world", FRAMEWORKS | ADAPTERS | {"farandole.bridge", "farandole.launch"}),
        ("launch", FRAMEWORKS | ADAPTERS | {"numpy", "farandole._core", "farandole.world", "farandole.bridge"}),
        ("rendezvous", FRAMEWORKS | ADAPTERS | {"numpy", "farandole._core", "farandole.world", "farandole.bridge"}),
        ("config", {"farandole.world", "farandole.rendezvous", "farandole.launch", "numpy"}),
        ("errors", {"farandole", "numpy"}),
    ],
)
def test_imports_go_downwards(name: str, forbidden: set[str]) -> None:
    assert not offences(name, forbidden)


def test_a_forbidden_import_would_be_seen() -> None:
    assert offences("torch", {"torch"})


def test_the_command_loads_nothing_heavy() -> None:
    code = (
        "import sys; from farandole.launch import cli, supervisor; "
        "print([m for m in ('numpy', 'torch', 'cloudpickle', 'farandole._core') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert out.stdout.strip() == "[]"


def test_the_environment_is_read_in_few_places() -> None:
    """config and detect interpret it; world and launch hand it over whole; nobody else looks."""
    allowed = {"world.py", "launch/cli.py", "rendezvous/detect/__init__.py"}
    readers = {
        str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if re.search(r"os\.(environ|getenv)", p.read_text())
    }
    assert readers <= allowed


NATIVE = {
    "base": set(),
    "os": set(),
    "trace": {"base"},
    "kernels": {"base"},
    "transport": {"base", "os"},
    "collective": {"base", "transport", "kernels", "os"},
    "backend": {"base", "transport", "collective", "kernels", "os", "trace"},
    "engine": {"base", "transport", "collective", "backend", "kernels", "os", "trace"},
    "bind": {"base", "engine", "kernels", "transport", "trace"},
}


def test_native_rooms_include_downwards() -> None:
    wrong = []
    for path in (ROOT / "native").rglob("*.*"):
        here = path.relative_to(ROOT / "native").parts[0]
        if here == "tests":
            continue
        text = path.read_text()
        for included in re.findall(r'#include "([a-z]+)/', text):
            if included != here and included not in NATIVE[here]:
                wrong.append(f"{path.relative_to(ROOT)} includes {included}/")
        if here != "bind" and re.search(r"#include <(Python|nanobind)", text):
            wrong.append(f"{path.relative_to(ROOT)} knows Python")
    assert not wrong


@pytest.mark.parametrize("module", ["farandole", "farandole.numpy", "farandole.torch", "farandole.errors"])
def test_public_names_exist_and_are_documented(module: str) -> None:
    loaded = importlib.import_module(module)
    assert loaded.__doc__
    assert list(loaded.__all__) == sorted(loaded.__all__)
    silent = [name for name in loaded.__all__ if callable(value := getattr(loaded, name)) and not inspect.getdoc(value)]
    assert not silent


def test_the_help_is_light() -> None:
    code = (
        "import runpy, sys; sys.argv = ['farandole', '--help']\n"
        "try: runpy.run_module('farandole', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end: assert not end.code\n"
        "print([m for m in ('numpy', 'torch', 'cloudpickle', 'farandole._core') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert "usage: farandole" in out.stdout and out.stdout.splitlines()[-1] == "[]"


def environment_uses(text: str) -> list[str]:
    """How a source touches the process's environment: "whole" where it hands os.environ over, else "reads"."""
    tree = ast.parse(text)
    handed = {id(value) for node in ast.walk(tree) if isinstance(node, ast.Call) for value in node.args}
    handed |= {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is None
    }
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names}:
            uses.append("reads")
        elif isinstance(node, ast.Attribute) and node.attr in names and isinstance(node.value, ast.Name):
            uses.append("whole" if node.attr == "environ" and id(node) in handed else "reads")
    return uses


def test_only_whole_environments_are_passed_on() -> None:
    """World and launch hand the environment over; the one reader is `run -x NAME`, for a variable of the user's."""
    found = {str(p.relative_to(SOURCE)): environment_uses(p.read_text()) for p in SOURCE.rglob("*.py")}
    assert {name: uses for name, uses in found.items() if "reads" in uses} == {"launch/cli.py": ANY}
    assert found["launch/cli.py"].count("reads") == 2
    assert {name for name, uses in found.items() if uses} == {"world.py", "launch/cli.py"}


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.getenv('A')",
        "import os; os.environ['A']",
        "import os as o; o.environ.get('A')",
        "from os import environ",
    ],
)
def test_a_reader_of_the_environment_would_be_seen(text: str) -> None:
    assert environment_uses(text) == ["reads"]


def test_native_code_reads_no_environment_and_knows_python_in_bind_only() -> None:
    for path in (ROOT / "native").rglob("*.*"):
        text, here = path.read_text(), path.relative_to(ROOT / "native").parts[0]
        assert not re.search(r"\b(secure_)?getenv\b|\benviron\b", text), path
        assert here == "bind" or not re.search(r'#\s*include\s*[<"](Python\.h|nanobind/)', text), path
        assert here == "tests" or here in NATIVE, path


@pytest.mark.parametrize("name", ["launch/plan.py", "bridge/gradients.py"])
def test_what_decides_knows_no_clock_and_no_socket(name: str) -> None:
    assert not imports(SOURCE / name) & {"time", "socket", "threading", "os", "select", "selectors", "subprocess"}


@pytest.mark.parametrize("name", ["engine/negotiate.cc", "engine/plan.cc", "engine/stall.cc", "collective/select.cc"])
def test_native_code_that_decides_knows_no_clock_and_no_socket(name: str) -> None:
    text = (ROOT / "native" / name).read_text()
    assert not re.search(r"#include <(chrono|thread|mutex|unistd\.h|time\.h|ctime|sys/)|::now\(|clock_gettime", text)
