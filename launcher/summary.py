"""What a finished run leaves: `summary.json`, and the ending that people see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dfl_mp.config import Config
from dfl_mp.log import read_lines, write_json
from launcher.compose import REPO
from launcher.last_screen import Ending
from launcher.snapshot import Snapshot
from launcher.tail import short
from launcher.words import ends, number, plural, thousands

MEASURED = ("tau_mean", "tau_pooled", "tau_untrained", "tau_zero_features", "greedy_identical", "repetition_rate")
"""Fields that come from the evaluator; None without held-out prompts."""
BUILTIN_PROMPTS = {"builtin:quickstart": str(REPO / "dfl_mp" / "quickstart" / "heldout.jsonl")}
OWN_DATA = "train for your own model", 'README.md, "Your own model"'
LOAD = "load the export in SGLang, vLLM or transformers", "docs/export.md"


def summarize(run_dir: Path, config: Config, seconds: float) -> dict[str, Any]:
    """Gather metrics and evaluation into `summary.json`; returns it. `seconds` is the wall time of this launch.

    `loss` is the last step's; `loss_first` and `loss_last` are means over the first and the last 5 % of the steps.
    `tokens_per_s` leaves the first step out, which waits for the models. `drafter_busy` and `target_busy` are the share
    of the time between the first and the last step of this launch in which they were at work.
    """
    lines = read_lines(run_dir / "metrics.jsonl")
    measured = _evaluation(run_dir)
    snapshot = Snapshot.read(run_dir)
    progress = snapshot.progress if snapshot else None
    tokens = sum(line["tokens"] for line in lines)
    timed = lines[1:] or lines
    spent = sum(line["step_s"] for line in timed)
    export = run_dir / "export"
    prompts = config.data.prompts
    first, last = ends([line["loss"] for line in lines if line["loss"] is not None]) or (None, None)
    summary = {
        "steps": len(lines),
        "tokens": tokens,
        "tokens_per_s": sum(line["tokens"] for line in timed) / spent if spent > 0 else None,
        "drafter_busy": progress.drafter_busy if progress else None,
        "target_busy": progress.target_busy if progress else None,
        "loss": lines[-1]["loss"] if lines else None,
        "loss_first": first,
        "loss_last": last,
        **{field: measured.get(field) for field in MEASURED},
        "export": str(export) if export.exists() else None,
        "prompts": BUILTIN_PROMPTS.get(prompts, prompts) if prompts is not None else None,
        "seconds": round(seconds, 3),
    }
    write_json(run_dir / "summary.json", summary)
    return summary


def ending(run_dir: Path) -> Ending:
    """What the last screen shows of a run that has its `summary.json`."""
    summary, measured = json.loads((run_dir / "summary.json").read_text()), _evaluation(run_dir)
    rate = "" if summary["tokens_per_s"] is None else f", {thousands(summary['tokens_per_s'])} tokens/s"
    return Ending(
        f"done: {plural(summary['steps'], 'step')}, {summary['tokens']:,.0f} tokens, {summary['seconds']:.0f} s{rate}",
        tuple(_facts(summary, measured)),
        tuple(_places(run_dir, summary)),
        tuple(_following(run_dir)),
        {int(n): count for n, count in measured.get("histogram", {}).items()},
        measured.get("sample"),
    )


def last_lines(end: Ending) -> list[str]:
    """The block that ends a run where there is no terminal: an ending without its chart; `|` ends each forward."""
    pairs = [*end.facts]
    if end.sample is not None:
        pairs.append(("prompt", " ".join(end.sample["prompt"].split())))
        pairs.append(("answer", " ".join("|".join(text for text, _ in end.sample["runs"]).split())))
    pairs += end.places
    lines = [end.headline, *(f"{label:<11} {text}".rstrip() for label, text in pairs)]
    return lines + [f"{'next':<11} {what}: {command}" for what, command in end.following]


def _facts(summary: dict[str, Any], measured: dict[str, Any]) -> list[tuple[str, str]]:
    facts = []
    if summary["loss_first"] is not None:
        ways = f"{number(summary['loss_first'])} -> {number(summary['loss_last'])}"
        facts.append(("loss", f"{ways}  mean of the first and of the last 5 % of the steps"))
    if summary["tau_mean"] is not None:
        before = summary["tau_untrained"]
        untrained = "" if before is None else f"{number(before)} -> "
        over = plural(measured["prompts"], "response") if measured.get("prompts") else "responses"
        facts.append(
            ("acceptance", f"{untrained}{number(summary['tau_mean'])}  tokens a target forward (τ), mean of {over}")
        )
        pooled = f"{number(summary['tau_pooled'])} pooled"
        blind = summary["tau_zero_features"]
        facts.append(("", pooled + ("" if blind is None else f"; {number(blind)} with target features zeroed")))
    if summary["greedy_identical"] is not None:
        facts.append(("identical", f"{summary['greedy_identical']:.1%} of the answers equal the target's own"))
    if summary["repetition_rate"] is not None:
        facts.append(
            ("repetition", f"{summary['repetition_rate']:.1%} of 4-token pieces stood earlier in their answer")
        )
    return facts


def _places(run_dir: Path, summary: dict[str, Any]) -> list[tuple[str, str]]:
    places = []
    if summary["export"] is not None:
        places.append(("export", short(Path(summary["export"]))))
    newest = newest_checkpoint(run_dir)
    if newest is not None:
        places.append(("checkpoint", short(newest)))
    return [*places, ("logs", short(run_dir / "logs")), ("summary", short(run_dir / "summary.json"))]


def _following(run_dir: Path) -> list[tuple[str, str]]:
    config = json.loads((run_dir / "config.json").read_text()) if (run_dir / "config.json").exists() else {}
    path = config.get("data", {}).get("path", "")
    return [OWN_DATA, LOAD] if path.startswith("builtin:") else [LOAD]


def newest_checkpoint(run_dir: Path) -> Path | None:
    """The folder of the newest complete checkpoint."""
    return max((run_dir / "checkpoints").glob("step_*"), default=None)


def _evaluation(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "eval.json"
    if not path.exists():
        return {}
    measured = json.loads(path.read_text())
    assert isinstance(measured, dict)
    return measured
