"""`make dialects TREE=...`: the keys of a framework's tree that its reader does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.dialect_age import found_in, main, unknown_keys

VERL = """
actor_rollout_ref:
  model: {path: Qwen/Qwen3-8B}
  actor: {strategy: megatron, ppo_mini_batch_size: 8, megatron: {tensor_model_parallel_size: 2, quantum_offload: true}}
"""
PARSER = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--micro-batch-size')\np.add_argument('--moe-warp-factor')\n"


def tree(folder: Path) -> Path:
    (folder / "conf").mkdir()
    (folder / "conf/run.yaml").write_text(VERL)
    (folder / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.megatron.quantum_offload=false --nnodes 2\n"
    )
    (folder / "arguments.py").write_text(PARSER)
    (folder / "broken.yaml").write_text("a: [")
    (folder / "broken.py").write_text("def")
    return folder


def test_what_the_reader_of_a_tree_does_not_know_is_named_with_its_files(tmp_path: Path) -> None:
    assert found_in(tree(tmp_path)) == "verl"
    unknown, files = unknown_keys(tmp_path, "verl")
    assert unknown["actor_rollout_ref.actor.megatron.quantum_offload"] == 2 and unknown["moe-warp-factor"] == 1
    assert not {"actor_rollout_ref.actor.megatron.tensor_model_parallel_size", "micro-batch-size"} & unknown.keys()
    assert files == 4


def test_the_command_prints_the_most_frequent_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["dialect_age.py", str(tree(tmp_path))])
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("verl: ") and lines[1].split() == [
        "2",
        "actor_rollout_ref.actor.megatron.quantum_offload",
    ]


def test_a_tree_of_nobody_asks_for_the_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["dialect_age.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
