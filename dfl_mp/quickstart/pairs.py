"""From entries to (prompt, answer) pairs: six kinds of question, each in a few wordings.

The answers to parameters and call follow from the prompt; the others have to be known in part. A model of a few million
parameters learns the first and imitates the second, which is what a drafter then has to predict.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass

from dfl_mp.quickstart.corpus import Entry

WORDINGS = {
    "describe": ("What does `{path}` do?", "Describe `{path}`.", "Explain the {kind} `{path}`."),
    "document": ("Document the {kind} `{call}`.", "Write a docstring for `{call}`.", "Write a stub of `{call}`."),
    "parameters": ("List the parameters of `{call}`.", "Which parameters does `{call}` take?"),
    "call": ("Show how to call `{call}` from `{module}`.", "Give an example that calls `{call}` from `{module}`."),
    "help": ("Help on `{call}` from `{module}`.", "Tell me all about the {kind} `{call}` of `{module}`."),
    "complete": ("Complete this docstring of `{path}`: {start}", "Go on, for `{path}`: {start}"),
}


@dataclass(frozen=True)
class Pair:
    task: str
    prompt: str
    answer: str


def chosen(name: str, task: str, count: int) -> int:
    """A number below `count` that depends on the name and the task alone."""
    return int.from_bytes(hashlib.sha256(f"{task} {name}".encode()).digest()[:4], "big") % count


def arguments(entry: Entry) -> list[tuple[str, str | None]]:
    """(name, default) of every parameter; the default is None where there is none, and names carry their stars.

    >>> arguments(Entry("f", "m", "function", "a, b=1, *c", ""))
    [('a', None), ('b', '1'), ('*c', None)]
    """
    try:
        args = ast.parse(f"def f({entry.signature}): pass").body[0].args  # type: ignore[attr-defined]
    except SyntaxError:
        return []
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + [ast.unparse(d) for d in args.defaults]
    found = [(arg.arg, default) for arg, default in zip(plain, defaults, strict=True)]
    if args.vararg:
        found.append(("*" + args.vararg.arg, None))
    found += [(a.arg, ast.unparse(d) if d else None) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg:
        found.append(("**" + args.kwarg.arg, None))
    return found


def parameter_line(name: str, default: str | None) -> str:
    if name.startswith("**"):
        return f"- `{name}`: any further keyword arguments"
    if name.startswith("*"):
        return f"- `{name}`: any further positional arguments"
    return f"- `{name}`: required" if default is None else f"- `{name}`: optional, `{default}` by default"


def parameters(entry: Entry, call: str) -> str:
    found = arguments(entry)
    if not found:
        return f"The {entry.kind} `{call}` takes no parameters."
    noun = "parameter" if len(found) == 1 else "parameters"
    return "\n".join([f"`{entry.name}` takes {len(found)} {noun}:", *(parameter_line(*each) for each in found)])


def example(entry: Entry) -> str:
    """A call by keyword where there is a default, by position elsewhere."""
    owner, _, leaf = entry.name.rpartition(".")
    given = ", ".join(name if default is None else f"{name}={default}" for name, default in arguments(entry))
    thing = owner.split(".")[0] or leaf
    target = f"{thing.lower()}.{leaf}" if owner else leaf
    made = f"{thing.lower()} = {thing}()\n" if owner else ""
    return f"```python\nfrom {entry.module} import {thing}\n\n{made}result = {target}({given})\n```"


def stub(entry: Entry) -> str:
    first, leaf = entry.doc.split("\n\n")[0], entry.name.rpartition(".")[2]
    if entry.kind == "class":
        names = [name for name, _ in arguments(entry)]
        lines = [f"class {leaf}:", f'    """{first}"""']
        if names:
            lines += ["", f"    def __init__(self, {entry.signature}):"]
            lines += [f"        self.{name.lstrip('*')} = {name.lstrip('*')}" for name in names]
    else:
        own = "self, " if entry.kind == "method" and entry.signature else "self" if entry.kind == "method" else ""
        lines = [f"def {leaf}({own}{entry.signature}):", f'    """{first}"""']
    return "\n".join(["```python", *lines, "```"])


def pairs_of(entry: Entry) -> list[Pair]:
    """The pairs of one entry; `complete` is left out where the docstring is too short to be cut."""
    path, call = f"{entry.module}.{entry.name}", f"{entry.name}({entry.signature})"
    first, about = entry.doc.split("\n\n")[0], f"`{entry.name}` is a {entry.kind} of `{entry.module}`."
    answers = {
        "describe": f"{about}\n\n{entry.doc}",
        "document": stub(entry),
        "parameters": parameters(entry, call),
        "call": example(entry),
    }
    answers["help"] = "\n\n".join([about, first, answers["parameters"], answers["call"]])
    words = first.split(" ")
    if len(words) >= 8:
        answers["complete"] = " ".join(words)
    fields = {"path": path, "kind": entry.kind, "call": call, "module": entry.module}
    fields["start"] = " ".join(words[: max(3, len(words) // 3)])
    made = []
    for task, answer in answers.items():
        wordings = WORDINGS[task]
        prompt = wordings[chosen(path, task, len(wordings))].format(**fields)
        made.append(Pair(task, prompt, answer))
    return made
