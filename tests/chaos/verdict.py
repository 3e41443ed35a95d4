"""What has to be true of a run after its end, whatever happened to it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from dfl_mp.log import read_lines
from tests.process.launches import processes

PER_STEP = 4
TOLERANCE = 1e-9


def weights(run_dir: Path, steps: int) -> torch.Tensor:
    tensors = load_file(run_dir / "checkpoints" / f"step_{steps:08d}" / "drafter.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def wrong(run_dir: Path, quiet: Path, steps: int) -> list[str]:
    """What differs from an undisturbed run of so many steps; empty when nothing does."""
    lines, undisturbed = read_lines(run_dir / "metrics.jsonl"), read_lines(quiet / "metrics.jsonl")
    found = []
    if [line["step"] for line in lines] != list(range(steps)):
        found.append(f"the {len(lines)} lines of the ledger are not steps 0 to {steps - 1}")
    if [n for line in lines for n in line["packs"]] != list(range(PER_STEP * steps)):
        found.append("along the final lineage not every pack is committed once and in order")
    for mine, other in zip(lines, undisturbed, strict=False):
        if abs(mine["loss"] - other["loss"]) > TOLERANCE:
            found.append(f"step {mine['step']}: loss {mine['loss']}, undisturbed {other['loss']}")
            break
    here, there = (weights(d, steps) if lines else torch.tensor(torch.nan) for d in (run_dir, quiet))
    if not torch.allclose(here, there, rtol=0, atol=TOLERANCE):
        found.append(f"weights differ from the undisturbed run's by {(here - there).abs().max().item():.3g}")
    if left := processes(run_dir):
        found.append(f"processes {left} are left")
    aside = [e["pack"] for e in read_lines(run_dir / "events.jsonl") if e["event"] == "pack_set_aside"]
    if aside:
        found.append(f"packs {aside} were set aside")
    return found
