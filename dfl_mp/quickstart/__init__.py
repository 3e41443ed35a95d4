"""The small real target, the prompts and the answers that ship with dfl-mp. A leaf: no torch.

`TARGET` is a folder that `AutoModelForCausalLM` and `AutoTokenizer` load offline. `TRAIN` holds conversations, as
`{"messages": [{"role": "user", ...}, {"role": "assistant", ...}]}`, whose answers are the target's own greedy output in
float32. `HELDOUT` holds prompts that neither target nor drafter was trained on, as `{"turns": ["..."]}`.
`python -m dfl_mp.quickstart.build` makes them; see `docs/quickstart.md`.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent
TARGET = ROOT / "target"
TRAIN = ROOT / "train.jsonl"
HELDOUT = ROOT / "heldout.jsonl"
REPORT = ROOT / "report.json"
