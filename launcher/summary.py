"""What a finished run leaves: `summary.json`, and the last lines on the console."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dfl_mp.config import Config
from dfl_mp.log import read_lines, write_json
from launcher.compose import REPO

MEASURED = ("tau_mean", "tau_pooled", "tau_untrained", "greedy_identical")
"""Fields that come from the evaluator; None without held-out prompts."""
BUILTIN_PROMPTS = {"builtin:quickstart": str(REPO / "dfl_mp" / "quickstart" / "heldout.jsonl")}


def summarize(run_dir: Path, config: Config, seconds: float) -> dict[str, Any]:
    """Gather metrics and evaluation into `summary.json`; returns it. `seconds` is the wall time of this launch."""
    lines = read_lines(run_dir / "metrics.jsonl")
    measured = _evaluation(run_dir)
    tokens = sum(line["tokens"] for line in lines)
    spent = sum(line["step_s"] for line in lines)
    export = run_dir / "export"
    prompts = config.data.prompts
    summary = {
        "steps": len(lines),
        "tokens": tokens,
        "tokens_per_s": tokens / spent if spent > 0 else None,
        "loss": lines[-1]["loss"] if lines else None,
        **{field: measured.get(field) for field in MEASURED},
        "export": str(export) if export.exists() else None,
        "prompts": BUILTIN_PROMPTS.get(prompts, prompts) if prompts is not None else None,
        "seconds": round(seconds, 3),
    }
    write_json(run_dir / "summary.json", summary)
    return summary


def last_lines(run_dir: Path, summary: dict[str, Any]) -> list[str]:
    """The block that ends a run."""
    lines = read_lines(run_dir / "metrics.jsonl")
    block = [f"done: {summary['steps']} steps, {summary['tokens']:,.0f} tokens, {summary['seconds']:.0f} s"]
    if lines:
        block.append(f"loss        {_number(lines[0]['loss'])} -> {_number(lines[-1]['loss'])}")
    if summary["tau_mean"] is not None:
        before = summary["tau_untrained"]
        untrained = "" if before is None else f"{_number(before)} -> "
        block.append(
            f"acceptance  {untrained}{_number(summary['tau_mean'])} tokens a target forward, mean over responses "
            f"({_number(summary['tau_pooled'])} pooled)"
        )
        if summary["greedy_identical"] is not None:
            block.append(f"identical   {summary['greedy_identical']:.1%} of the answers equal the target's own")
    newest = newest_checkpoint(run_dir)
    if newest is not None:
        block.append(f"checkpoint  {newest}")
    if summary["export"] is not None:
        block.append(f"export      {summary['export']}")
    block.append(f"summary     {run_dir / 'summary.json'}")
    return block


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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
