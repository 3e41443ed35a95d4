"""Stage 1: functions and classes with their docstrings, read from the standard library and a few BSD-licensed packages.

Sources are parsed, not imported, except for the built-in modules, which have no source. The result is sorted and
de-duplicated, so one set of installed versions always gives the same file.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("numpy", "torch", "networkx", "sympy")
"""BSD-3-Clause, named in NOTICE; the standard library is always read."""
SKIP_PARTS = {"test", "tests", "testing", "idlelib", "lib2to3", "ensurepip", "site-packages", "_vendor", "third_party"}
MAX_DOC, MIN_DOC, MAX_SIGNATURE = 360, 24, 96
SECTION = re.compile(
    r"^(\.\. |>>> |Args?:|Returns?:|Raises:|Examples?:|Notes?:|[A-Z][A-Za-z ]+\n[-=~]{3,}|[-=*~]{3,})", re.M
)


@dataclass(frozen=True)
class Entry:
    """One documented thing; `signature` is what stands in its parentheses, `split` is train, prompt or heldout."""

    name: str
    module: str
    kind: str
    signature: str
    doc: str
    split: str = "train"


def clean(doc: str | None) -> str:
    """The leading paragraphs of a docstring up to MAX_DOC characters, or '' if they are not plain English text."""
    text = inspect.cleandoc(doc or "")
    found = SECTION.search(text)
    text = text[: found.start()] if found else text
    kept: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = " ".join(paragraph.split())
        if not paragraph or sum(map(len, kept)) + len(paragraph) > MAX_DOC:
            break
        kept.append(paragraph)
    text = "\n\n".join(kept).strip().rstrip(":").replace("``", "`")
    plain = text.isascii() and "<|" not in text and '"""' not in text and text.count(" ") >= 3 and text[:1].isalpha()
    return text if plain and len(text) >= MIN_DOC and text[-1] in ".!?)`" else ""


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool) -> str:
    """Parameters without annotations, and without `self` or `cls`."""
    args = node.args
    for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
        if arg is not None:
            arg.annotation = None
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    first = args.posonlyargs or args.args
    if method and not static and first:
        del first[0]
    return ast.unparse(args)


def entries_of(tree: ast.Module, module: str) -> Iterator[Entry]:
    """Public functions, classes and methods of one module, one level deep."""

    def visit(body: list[ast.stmt], prefix: str) -> Iterator[Entry]:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                kind = "method" if prefix else "function"
                is_property = any(isinstance(d, ast.Name) and "property" in d.id for d in node.decorator_list)
                if not is_property:
                    signature = signature_of(node, bool(prefix))
                    yield Entry(prefix + node.name, module, kind, signature, clean(ast.get_docstring(node)))
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not prefix:
                inits = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
                signature = signature_of(inits[0], True) if inits else ""
                yield Entry(node.name, module, "class", signature, clean(ast.get_docstring(node)))
                yield from visit(node.body, node.name + ".")

    yield from visit(tree.body, "")


def source_entries(root: Path, prefix: str) -> Iterator[Entry]:
    """Every `.py` file below `root`, in sorted order; private modules and tests are left out."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIP_PARTS & set(parts) or any(part.startswith(("test_", "__phello__", "_pytest")) for part in parts):
            continue
        names = [part for part in parts if part != "__init__"]
        if prefix == "numpy":  # its public functions live in private modules and are exported above them
            names = list(itertools.takewhile(lambda part: not part.startswith("_"), names))
        module = ".".join(([prefix] if prefix else []) + names)
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # a file for another Python version, or a template: not a source of this interpreter
        yield from entries_of(tree, module)


def builtin_entries() -> Iterator[Entry]:
    """Functions and types of modules written in C, whose signature and docstring only the live object knows."""
    for module_name in sorted({"builtins", "math", "datetime", "array", *sys.builtin_module_names}):
        if module_name.startswith("_") or module_name not in sys.stdlib_module_names | {"builtins"}:
            continue
        module = importlib.import_module(module_name)
        for name, value in sorted(vars(module).items()):
            members = sorted(vars(value).items()) if inspect.isclass(value) else []
            for member, thing in [("", value), *members]:
                if name.startswith("_") or member.startswith("_") or not callable(thing):
                    continue
                kind = "method" if member else "class" if inspect.isclass(thing) else "function"
                text = getattr(thing, "__text_signature__", None) or "()"
                signature = re.sub(r"^\$\w+(, )?(/, |/$)?", "", text[1:-1])
                full = f"{name}.{member}" if member else name
                yield Entry(
                    full, module_name, kind, signature.removesuffix(", /"), clean(getattr(thing, "__doc__", ""))
                )


def split_of(name: str) -> str:
    """By the last part of the name, so every `forward` is on the same side: 4 % heldout, 24 % prompt, else train."""
    value = int.from_bytes(hashlib.sha256(name.rpartition(".")[2].encode()).digest()[:4], "big") % 100
    return "heldout" if value < 4 else "prompt" if value < 28 else "train"


def collect() -> list[Entry]:
    """All entries, sorted by module and name.

    A docstring is kept once. What is kept for target training never shares a docstring with a prompt, because the first
    of equal docstrings is chosen after the split, held-out names first.
    """
    found = [*builtin_entries(), *source_entries(Path(os.__file__).parent, "")]
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        found += source_entries(Path(spec.origin).parent, package)
    split = [Entry(e.name, e.module, e.kind, e.signature, e.doc, split_of(e.name)) for e in found if usable(e)]
    order = {"heldout": 0, "prompt": 1, "train": 2}
    split.sort(key=lambda e: (order[e.split], len(e.module), e.module, e.name))
    kept: dict[str, Entry] = {}
    for entry in split:
        kept.setdefault(entry.doc.lower(), entry)
    return sorted(kept.values(), key=lambda e: (e.module, e.name, e.doc))


def usable(entry: Entry) -> bool:
    """Whether the entry makes a prompt that reads well."""
    short = len(entry.signature) <= MAX_SIGNATURE and len(entry.module) + len(entry.name) <= 72
    public = not any(part.startswith("_") for part in entry.module.split("."))
    return bool(entry.doc) and short and public and (entry.signature + entry.name).isascii()
