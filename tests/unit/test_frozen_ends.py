"""What a drafter borrows of a target is found by the names that `prepare` wrote down, without transformers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dfl_mp.config import TargetConfig
from dfl_mp.model.frozen_ends import frozen_ends
from dfl_mp.model.target_load import end_names
from dfl_mp.model.target_spec import describe_target
from dfl_mp.specs import EndNames, TargetSpec
from launcher.compose import REPO
from tests.unit.tiny_targets import save_tiny, target_config, tiny_config, tiny_model

torch.set_num_threads(1)

READ = """
import sys
from safetensors.torch import save_file
from dfl_mp.config import TargetConfig
from dfl_mp.model.frozen_ends import frozen_ends
from dfl_mp.specs import TargetSpec
assert "huggingface_hub" not in sys.modules
spec, config = TargetSpec.model_validate_json(sys.argv[1]), TargetConfig.model_validate_json(sys.argv[2])
ends = frozen_ends(spec, config, "cpu")
save_file({"embed": ends.embed_VH.clone(), "head": ends.head_VH.clone()}, sys.argv[3])
print(ends.head_VH is ends.embed_VH, "transformers" in sys.modules)
"""


def prepared(config: TargetConfig) -> TargetSpec:
    spec = describe_target(config)
    return spec.model_copy(update={"ends": end_names(spec, config)})


def read_elsewhere(spec: TargetSpec, config: TargetConfig, out: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """What a process that has loaded nothing else prints, and the tables that it found."""
    arguments = [spec.model_dump_json(), config.model_dump_json(), str(out / "ends.safetensors")]
    environment = dict(os.environ, HF_HUB_OFFLINE="1", HF_HOME=str(out), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, "-c", READ, *arguments], cwd=REPO, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), load_file(out / "ends.safetensors")


def in_hub_cache(folder: Path, home: Path, name: str) -> None:
    """Move a folder to where the hub's client keeps the newest revision of `name`."""
    cached = home / "hub" / f"models--{name.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    shutil.move(folder, cached / "snapshots" / ("0" * 40))


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_of_the_hub_is_read_without_transformers(tied: bool, tmp_path: Path) -> None:
    config = target_config(save_tiny("qwen3", tmp_path / "made", tie_word_embeddings=tied))
    name, model = "some/model", tiny_model("qwen3", tie_word_embeddings=tied)
    spec = prepared(config).model_copy(update={"path": name})
    in_hub_cache(tmp_path / "made", tmp_path, name)
    said, found = read_elsewhere(spec, config.model_copy(update={"path": name}), tmp_path)
    assert said == f"{tied} False"
    assert torch.equal(found["embed"], model.get_input_embeddings().weight)
    assert torch.equal(found["head"], model.get_output_embeddings().weight)


def test_random_ends_are_made_without_transformers(tmp_path: Path) -> None:
    tiny_config("qwen3").save_pretrained(tmp_path)
    config = target_config(tmp_path, load_format="dummy")
    said, found = read_elsewhere(prepared(config), config, tmp_path)
    looked_up = frozen_ends(describe_target(config), config, "cpu")
    assert said == "False False"
    assert torch.equal(found["embed"], looked_up.embed_VH) and torch.equal(found["head"], looked_up.head_VH)


def test_names_that_are_not_on_disk_load_the_whole_model(tmp_path: Path) -> None:
    config = target_config(save_tiny("qwen3", tmp_path))
    names = EndNames(embed="model.embed_tokens.weight", head="of_old.weight", tied=False)
    found = frozen_ends(describe_target(config).model_copy(update={"ends": names}), config, "cpu")
    assert torch.equal(found.head_VH, tiny_model("qwen3").get_output_embeddings().weight)


def test_a_spec_of_before_ends_were_written_is_read(tmp_path: Path) -> None:
    config = target_config(save_tiny("llama", tmp_path))
    now = prepared(config)
    before = TargetSpec.model_validate(now.model_dump(exclude={"ends"}))
    assert now.ends is not None and before.ends is None
    old, new = frozen_ends(before, config, "cpu"), frozen_ends(now, config, "cpu")
    assert torch.equal(old.embed_VH, new.embed_VH) and old.head_VH is old.embed_VH and new.head_VH is new.embed_VH
