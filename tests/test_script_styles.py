# ruff: noqa: E501
"""Scripts in published styles, and words of their callers, read to the words that bash passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.shell.script import Beside, Launch, read_script
from megatron_memory_estimator.inputs.shell.values import bare, in_doubt

from .helpers import ROOT

STYLES = ROOT / "tests" / "launch_scripts" / "styles"
PAI = [
    "dsw",
    "7B",
    "1",
    "512",
    "1e-5",
    "1e-6",
    "4096",
    "4096",
    "bf16",
    "4",
    "2",
    "1",
    "1",
    "true",
    "true",
    "true",
    "false",
    "sel",
    "false",
    "100",
    "/data",
    "/valid",
    "/load",
    "10000000000",
    "/out",
]
FACTS = [
    ("pai_25_words.sh", PAI, {}, 8, "--num-layers 28 --num-query-groups 4 --tensor-model-parallel-size 4 --train-iters 4768 --lr-warmup-iters 47 --bf16 --use-distributed-optimizer --recompute-activations --sequence-parallel"),
    ("pai_25_words.sh", ["dsw", "14B", *PAI[2:17], "full", "0.5", *PAI[19:]], {}, 8, "--num-layers 48 --recompute-granularity full --optimizer-offload-fraction 0.5"),
    ("bigscience.slurm", [], {}, 48, "--num-layers 39 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 3 --exit-duration-in-mins 1190 --zero-stage 1"),
    ("gpt3.sh", [], {}, 8, "--num-layers 96 --attention-backend auto --pipeline-model-parallel-size 16 --fp16"),
    ("gpt3.sh", ["/ckpt", "/tb"], {"NUM_NODES": "128"}, 1024, "--save /ckpt --tensorboard-dir /tb"),
    ("llama.sh", [], {}, 8, "--fp8-format hybrid --mock-data --tokenizer-type NullTokenizer --vocab-size 128256"),
    ("mixtral.sh", [], {}, 32, "--num-experts 8 --expert-model-parallel-size 8 --no-load-optim"),
    ("mamba.sh", ["/data"], {}, 8, "--num-layers 56 --hidden-size 4096 --tensor-model-parallel-size 4 --lr-decay-samples 73192188 --data-path /data"),
    ("beside.sh", [], {}, 8, "--num-layers 24 --micro-batch-size 2"),
    ("beside.sh", ["--layers", "12", "--nodes=2", "--bf16"], {}, 16, "--num-layers 12 --micro-batch-size 2 --bf16"),
]  # fmt: skip


def read(name: str, words: list[str], given: dict[str, str]) -> Launch:
    return read_script((STYLES / name).read_text(), given, words, Beside(str(STYLES / name)))


@pytest.mark.parametrize(("name", "caller", "given", "gpus", "facts"), FACTS)
def test_a_script_in_a_published_style(
    name: str, caller: list[str], given: dict[str, str], gpus: int, facts: str
) -> None:
    found = read(name, caller, given)
    text = " " + " ".join(bare(word) for word in found.words) + " "
    assert found.num_gpus == gpus
    pieces = facts.split(" --")
    assert all(f" {'--' if at else ''}{piece} " in text for at, piece in enumerate(pieces)), text


PROGRAMS = [
    ("NPROC_PER_NODE=4 NNODES=2 megatron sft --model x", "megatron sft", ["--model", "x"], 8),
    ("export NPROC_PER_NODE=8\nmegatron rlhf --rlhf_type dpo", "megatron rlhf", ["--rlhf_type", "dpo"], 8),
    ("megatron pt --model x", "megatron pt", ["--model", "x"], 1),
    ("python3 -m verl.trainer.main_ppo a.b=1 +c=2", "verl.trainer.main_ppo", ["a.b=1", "+c=2"], None),
    ("torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer a=1", "verl.trainer.sft_trainer", ["a=1"], 8),
    ("ray job submit --no-wait -- python3 train_async.py --colocate", "train_async.py", ["--colocate"], None),
    ("uv run examples/run_grpo_math.py --config x.yaml k=v", "examples/run_grpo_math.py", ["--config", "x.yaml", "k=v"], None),
    ("python run.py --config-path ./conf --config-name train action=run", "run.py", ["--config-path", "./conf", "--config-name", "train", "action=run"], None),
    ("flagscale train aquila", "flagscale train", ["aquila"], None),
    ("EXP=x.yaml bash examples/run_pretrain.sh lr=1", "examples/run_pretrain.sh", ["lr=1"], None),
    ("./scripts/training/train.sh --nodes 2 --model m", "./scripts/training/train.sh", ["--nodes", "2", "--model", "m"], None),
    ("python scripts/performance/setup_experiment.py --gpu h100", "scripts/performance/setup_experiment.py", ["--gpu", "h100"], None),
    ("python examples/start_rlvr_pipeline.py --config_path d --config_name f", "examples/start_rlvr_pipeline.py", ["--config_path", "d", "--config_name", "f"], None),
    ("deepspeed --num_nodes 2 --num_gpus 8 my_model.py --num-layers 4", "my_model.py", ["--num-layers", "4"], 16),
    ("accelerate launch --num_processes 16 train.py", "train.py", [], 16),
    ("horovodrun -np 4 python train.py", "train.py", [], 4),
    ("#SBATCH -N 4 --ntasks-per-node=8\nsrun numactl --membind=0 python pretrain_gpt.py", "pretrain_gpt.py", [], 32),
    ("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=h100:8 # all\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE train.py", "train.py", [], 32),
    ("true\n#SBATCH --nodes=9\npython train.py ${SLURM_NNODES:-no}", "train.py", ["no"], None),
    ("python convert.py x\ntorchrun --nproc_per_node 2 train.py y\npython evaluate.py z", "train.py", ["y"], 2),
]  # fmt: skip


@pytest.mark.parametrize(("text", "entry", "words", "gpus"), PROGRAMS)
def test_programs_that_train(text: str, entry: str, words: list[str], gpus: int | None) -> None:
    found = read_script(text)
    assert (found.entry, found.words, found.num_gpus) == (entry, words, gpus)


UNKNOWN = [
    ("N=$(nvidia-smi -L | wc -l)\ntorchrun --nproc_per_node $N train.py", ["$N", "nvidia-smi -L", "--set N=N", "--num-gpus"]),
    ("torchrun --nproc_per_node gpu train.py", ["gpu", "--num-gpus"]),
    ("torchrun --nnodes 2:4 --nproc_per_node 8 train.py", ["2:4", "--num-gpus"]),
    ("torchrun --nnodes $WORLD_SIZE --nproc_per_node $K train.py", ["--set WORLD_SIZE=N", "--set K=N"]),
    ("deepspeed --hostfile hosts train.py", ["--hostfile", "--num-gpus"]),
    ("deepspeed train.py", ["--num_gpus", "--num-gpus"]),
    ("accelerate launch train.py", ["--num_processes"]),
    ("#SBATCH --nodes=2-4 --ntasks-per-node=8\nsrun python train.py", ["2-4"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "names"), UNKNOWN)
def test_a_number_of_gpus_that_is_not_known_says_why(text: str, names: list[str]) -> None:
    found = read_script(text)
    assert found.num_gpus is None
    assert all(name in found.gpus_unknown for name in names), found.gpus_unknown


ASKED = [
    ("for TP in 1 2; do torchrun train.py --tp $TP; done", "for TP = 1, 2; choose one, such as --set TP=1"),
    ("for L in 1,2 '3 4'; do IFS=, read A B <<< $L; torchrun train.py $A; done", "for L = 1,2, 3 4; choose one, such as --set L=1,2"),
    ("if true; then echo 'usage: x'; exit 1; fi\ntorchrun train.py", "the script stops at line 1, before it starts a training: usage: x"),
    ("megatron export --model x", "megatron export serves, evaluates, converts or prepares"),
    ("python tools/checkpoint/convert.py --x", "convert.py serves"),
    ("source lost.sh", "it sources lost.sh, which is not there or not beside the script"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), ASKED)
def test_what_cannot_be_chosen_is_asked_for(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_script(text)
    assert sentence in str(error.value)


def test_the_caller_picks_a_round_and_rounds_without_effect_are_one_run() -> None:
    loop = "for TP in 1 2 4; do N+=x; torchrun train.py --tp $TP $N; done"
    assert read_script(loop, {"TP": "4"}).words == ["--tp", "4", "x"]
    assert read_script("for ((i=1; i<9; i*=2)); do torchrun train.py $i; done", {"i": "4"}).words == ["4"]
    assert read_script("for S in 1 2; do torchrun train.py --seed $S --save out$S; done").words[:2] == ["--seed", "2"]


def test_words_that_bash_does_not_pass_are_said() -> None:
    behind = read_script("torchrun train.py --a 1 \\ # why\n  --b 2")
    assert behind.words == ["--a", "1"] and len(behind.notes) == 2
    assert "--b 2 is not passed" in behind.notes[1]
    commented = read_script("torchrun train.py --a \\\n# --b \\\n--c 3")
    assert commented.words == ["--a"] and "--c 3 is not passed" in commented.notes[0]


def test_plain_sums_of_programs_are_worked_out() -> None:
    sums = ["echo '(2+3)*4/3' | bc", "python -c 'print(2*8//3)'", "awk 'BEGIN {print 6-8}'"]
    assert [read_script(f"python train.py $({one})").words for one in sums] == [["6"], ["5"], ["-2"]]
    for one in ["python -c 'print(6/2)'", "echo 7/2-9 | bc", "python -c 'import os'", "echo '2^9' | bc"]:
        assert in_doubt(read_script(f"python train.py $({one})").words[0])


def test_placeholders_stand_for_values() -> None:
    found = read_script(
        "TP=<tp>\nA=(--load <path to model> --bf16)\ntorchrun train.py ${A[@]} --save /a/<user>/b --tp $TP"
    )
    assert [bare(word) for word in found.words] == ["--load", "", "--bf16", "--save", "/a//b", "--tp", ""]


def test_files_that_the_script_writes_are_known_to_the_program() -> None:
    text = "T=4\ncat > ./c.yaml <<EOF\ntp: $T\nEOF\ntorchrun train.py --config=./c.yaml --other x.yaml"
    assert read_script(text).files == {"c.yaml": "tp: 4\n"}


def test_only_files_of_the_scripts_folder_are_opened(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.sh").write_text("A=secret")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "beside.sh").write_text("B=2")
    (tmp_path / "in" / "link.sh").symlink_to(tmp_path / "elsewhere.sh")
    script = tmp_path / "in" / "run.sh"
    text = f". ./beside.sh\nsource ../elsewhere.sh\n. {tmp_path}/elsewhere.sh\n. link.sh\npython train.py --b $B --a ${{A:-none}}"
    assert read_script(text, beside=Beside(str(script))).words == ["--b", "2", "--a", "none"]
    assert read_script(text, beside=Beside(str(script), follow=True)).words == ["--b", "2", "--a", "secret"]


def test_a_lost_file_is_named_where_what_it_sets_decides(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("source conf/network.sh\ntorchrun --nproc_per_node 8 pretrain_gpt.py ${NETWORK[@]} --bf16")
    with pytest.raises(ConfigError, match=r"conf/network.sh, which line 1 sources, is not there"):
        TrainingJob.from_megatron_args(script)


SMALL = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --vocab-size 1000 --bf16"


def test_words_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(
        f'torchrun --nproc_per_node $1 pretrain_gpt.py {SMALL} --micro-batch-size ${{2:-1}} "${{@:3}}"'
    )
    main(["estimate", "run.sh", "4", "2", "--recompute-activations", "--", "--context-parallel-size", "2"])
    out = capsys.readouterr().out
    assert "4 GPUs: cp 2, dp 2; seq 64, mbs 2" in out and "recompute selective" in out
    main(["estimate", "run.sh", "4", "2", "--set", "1=8"])
    assert "8 GPUs" in capsys.readouterr().out
    Path("plain.sh").write_text(f"torchrun --nproc_per_node 2 pretrain_gpt.py {SMALL} --micro-batch-size 1")
    with pytest.raises(SystemExit):
        main(["estimate", "plain.sh", "--tpp", "2"])
    assert 'No such option "--tpp", and the script takes no words' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["estimate", "Qwen/Qwen3-8B", "plain.sh", "--tpp", "2"])
    assert 'No such option "--tpp"' in capsys.readouterr().err
