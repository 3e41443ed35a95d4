"""The loss of the fast training step beside that of a plain float32 one, on the same packs of a run.

    python -m benchmarks.curves --run runs/latest --steps 300 --dtype bfloat16

The run's folder gives target, packs and settings. Plain is autograd, dense attention, all logits, torch's AdamW and
clipping, everything in float32; fast is the step that drafters take, in `--dtype`, and with `--float8-too` a second
time with `drafter.float8`. Legend: `dfl_mp/model/shapes.py`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.results_file import ResultFile
from dfl_mp.config import Config
from dfl_mp.data.packs import PackStore
from dfl_mp.model.drafter import new_drafter
from dfl_mp.model.frozen_ends import frozen_ends
from dfl_mp.model.shapes import FrozenEnds, PackTensors
from dfl_mp.model.target import load_feature_target
from dfl_mp.roles.prepare import read_config
from dfl_mp.roles.tensors import to_tensors
from dfl_mp.specs import Prepared
from dfl_mp.train.inputs import input_maker
from dfl_mp.train.schedule import learning_rate
from dfl_mp.train.step import StepSettings, TrainStep

SMOOTH = 20
"""Steps whose mean loss is compared."""


class PlainStep:
    """One optimizer step by autograd and torch.optim in float32."""

    def __init__(self, config: Config, prepared: Prepared, ends: FrozenEnds, gamma: float) -> None:
        self.config, self.num_steps = config, prepared.num_steps
        self.ends = ends.to(torch.float32, ends.embed_VH.device)
        self.drafter = new_drafter(prepared.drafter, self.ends.embed_VH.device)
        self.drafter.init_weights(config.train.seed)
        self.inputs = input_maker(prepared.drafter, self.ends, gamma, "dense")
        o = config.optim
        matrices = [p for p in self.drafter.parameters() if p.ndim > 1]
        norms = [p for p in self.drafter.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": o.weight_decay}, {"params": norms, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(o.beta1, o.beta2), eps=o.eps)

    def step(self, work: list[tuple[Tensor, PackTensors]], number: int) -> float:
        """The loss of the step, before its update."""
        total, denominator = torch.zeros((), device=work[0][0].device), 0.0
        for features, pack in work:
            made = self.inputs(pack)
            hidden = self.drafter(features.float(), made.embeds_BMH, pack.position_BS, made.positions_BM, made.masks)
            labels, weight = made.blocks.labels_BNK[:, :, 1:], made.blocks.weight_BNK[:, :, 1:].float()
            ce = F.cross_entropy(self.ends.logits(hidden).flatten(0, 2), labels.flatten(), reduction="none")
            total = total + (ce * weight.flatten()).sum()
            denominator += float(weight.sum())
        loss = total / denominator
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.config.optim.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config.optim, number, self.num_steps)
        self.optimizer.step()
        return float(loss.detach())


def fast_step(config: Config, prepared: Prepared, ends: FrozenEnds, dtype: str, float8: bool) -> TrainStep:
    settings = StepSettings(
        optim=config.optim,
        loss=config.train.loss,
        dtype=dtype,
        attention=config.drafter.attention,
        packs_per_step=config.train.packs_per_step,
        num_steps=prepared.num_steps,
        float8=float8,
    )
    step = TrainStep(new_drafter(prepared.drafter, ends.embed_VH.device), ends, settings)
    step.reset(config.train.seed)
    return step


def compare(run: Path, steps: int, dtype: str, float8_too: bool) -> dict[str, Any]:
    """Losses of all, and by how much their means over `SMOOTH` steps differ from plain's at most, relatively."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config, prepared = read_config(run), Prepared.read(run / "prepared.json")
    if config.train.loss.name != "dflash":
        raise SystemExit(f"--run: {run} trains with train.loss.name={config.train.loss.name}; only dflash is compared")
    store, per_step = PackStore.open(Path(prepared.data_dir)), config.train.packs_per_step
    ends = frozen_ends(prepared.target, config.target, device)
    target = load_feature_target(prepared.target, config.target, device)
    fast = {"fast": fast_step(config, prepared, ends, dtype, False)}
    if float8_too:
        fast["float8"] = fast_step(config, prepared, ends, dtype, True)
    plain = PlainStep(config, prepared, ends, fast["fast"].gamma)
    found: dict[str, list[float]] = {name: [] for name in (*fast, "plain")}
    memory: dict[int, int] = {}
    for number in range(min(steps, prepared.num_steps)):
        packs = [to_tensors(store[number * per_step + i], device) for i in range(per_step)]
        work = [(target.features(p.tokens_BS, p.position_BS, p.document_BS), p) for p in packs]
        for name, step in fast.items():
            for i, (features, pack) in enumerate(work):
                step.accumulate(features, pack, i)
            found[name].append(step.apply(step.vector, number).loss)
        found["plain"].append(plain.step(work, number))
        if number % 50 == 49:
            memory[number + 1] = torch.cuda.memory_reserved() >> 20 if device.type == "cuda" else 0
            print(
                f"step {number + 1}:",
                ", ".join(f"{name} {losses[-1]:.4f}" for name, losses in found.items()),
                flush=True,
            )
    worst = {name: worst_difference(found[name], found["plain"]) for name in fast}
    about = {"dtype": dtype, "attention": fast["fast"].attention, "reserved_mib_at_step": memory}
    return about | {"worst_relative_difference": worst} | found


def worst_difference(losses: list[float], plain: list[float]) -> float:
    means, wanted = (torch.tensor(x).unfold(0, min(SMOOTH, len(x)), 1).mean(1) for x in (losses, plain))
    return float(((means - wanted).abs() / wanted).max())


def draw(path: Path, found: dict[str, Any]) -> str:
    """Write a PNG and say where; or say why there is none."""
    try:
        import matplotlib
    except ImportError:
        return "no picture: matplotlib is not installed"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.5))
    axes.plot(found["plain"], label="plain, float32", linewidth=2.5, alpha=0.5)
    if "float8" in found:
        axes.plot(found["float8"], label="fast, drafter.float8", linewidth=0.9)
    axes.plot(found["fast"], label=f"fast, {found['dtype']}, {found['attention']} attention", linewidth=0.9)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--float8-too", action="store_true", help="a second fast step, with drafter.float8")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = ResultFile("curves", options.out)
    found = compare(options.run, options.steps, options.dtype, options.float8_too)
    result.add("result", found)
    for name, worst in found["worst_relative_difference"].items():
        print(f"{name}: worst relative difference of {SMOOTH}-step means {worst:.2e}")
    print(draw(result.path.with_suffix(".png"), found))


if __name__ == "__main__":
    main()
