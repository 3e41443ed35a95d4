from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from dfl_mp.specs import DrafterSpec, Prepared, TargetSpec

SHAPE = {
    "hidden_size": 8,
    "num_layers": 2,
    "intermediate_size": 8,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {},
    "max_position_embeddings": 8,
}
TARGET = TargetSpec(
    **SHAPE,
    path="stub",
    architecture="Stub",
    vocab_size=8,
    layer_ids=(0,),
    embedding_scale=1.0,
    logit_multiplier=1.0,
    final_logit_softcapping=None,
    eos_token_ids=(0,),
)
DRAFTER = DrafterSpec(
    **SHAPE,
    num_features=1,
    block_size=2,
    mask_token_id=0,
    layer_types=("full_attention",) * 2,
    sliding_window=None,
    is_causal=True,
)

if __name__ == "__main__":
    if os.environ.get("DFL_STUB") == "refuse":
        sys.exit(print("error: data.path: line 3 is no conversation", file=sys.stderr) or 2)
    if os.environ.get("DFL_STUB") == "slow":
        time.sleep(0.5)
    run_dir = Path(sys.argv[1])
    shape = {"num_packs": 20, "num_steps": 10, "row_tokens": 8, "rows_per_pack": 1, "anchors_per_row": 1}
    prepared = Prepared(target=TARGET, drafter=DRAFTER, data_dir="", **shape, num_prompts=0, report={})
    prepared.write(run_dir / "prepared.json")
    print("data: a stub's")
