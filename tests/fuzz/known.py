# ruff: noqa: SIM905
"""Inputs that once crashed a reader, hung it or were read wrongly, each with the sentence that they get; an empty one is accepted."""

from __future__ import annotations

from typing import Any

from megatron_memory_estimator.inputs.catalog import entries

from . import seeds

RUN = "\n" + seeds.LAUNCH
JSON = '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000'
ODD_DIGITS = "9" * 5000


def catalogue(name: str, **changes: Any) -> dict[str, Any]:
    """A config of the catalogue with changes."""
    return {**entries()[name]["config"], **changes}


def run(**changes: Any) -> dict[str, Any]:
    """A file with a measured run."""
    return {"1": {**seeds.RUN, **changes}}


def step(**changes: Any) -> dict[str, Any]:
    """A file with a measured step."""
    return {"1": {**seeds.STEP, **changes}}


def request(tool: str, **arguments: Any) -> dict[str, Any]:
    """A request of the MCP server."""
    return {"tool": tool, "arguments": arguments}


SHELL: list[tuple[str, str]] = [
    ("A=xxxxxxxx\n" + 'A="$A$A"\n' * 40 + RUN, "of the script: the value of A grows beyond"),
    ("A=xxxxxxxx\n" + 'A+="$A"\n' * 40 + RUN, "of the script: the value of A grows beyond"),
    ("A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + RUN, "becomes more than"),
    ('A=\'eval "$A"\'; eval "$A"' + RUN, "of the script: eval is nested too deeply"),
    ("WORLD_SIZE=²" + RUN, ""),
    ("if [ ² -gt 1 ]; then A=1; fi" + RUN, ""),
    ("if [ --5 -gt 1 ]; then A=1; fi" + RUN, ""),
    (f"if [ {ODD_DIGITS} -gt 1 ]; then A=1; fi" + RUN, ""),
    (f"WORLD_SIZE={ODD_DIGITS}" + RUN, ""),
    (f"#SBATCH --nodes={ODD_DIGITS}" + RUN, ""),
    (
        f"#SBATCH --nodes=²\n#SBATCH --ntasks-per-node=8\nsrun {seeds.LAUNCH}",
        "--nodes='²' is no count; give --num-gpus N",
    ),
    ("A=xxxxxxxx\n" + "A=$(echo $A$A)\n" * 40 + RUN, "of the script: the value of A grows beyond"),
    ("A=xxxxxxxx\n" + 'eval "A=$A$A"\n' * 40 + RUN, "of the script: the value of A grows beyond"),
    ("A=1\n" * 60_000 + RUN, "a script has at most 50,000 lines here"),
    (f"torchrun --nproc-per-node {ODD_DIGITS} pretrain_gpt.py {seeds.SMALL}", ""),
    (f"A=$(({'9' * 400}/3))" + RUN, "cannot be worked out: whole numbers and C"),
    (f"A=$(({'-' * 9000}1))" + RUN, "cannot be worked out"),
    ("A=$((\0))" + RUN, "the script has a null byte"),
    ("A=$((1if 0else 2)); B=$((3a))" + RUN, "cannot be worked out: whole numbers and C"),
    ("A=$((9007199254740993/1)); B=$A" + RUN + " --save $B", ""),
    (f"cat > job.sh <<EOF\ntorchrun --nproc-per-node 8 pretrain_gpt.py {seeds.SMALL}\nEOF\njob.sh", ""),
    ("function f", "of the script has a function f without a body"),
    ("f()", "of the script has a function f without a body"),
    ("[[ a > b ]] && A=1" + RUN, ""),
    (f"{seeds.LAUNCH} --hidden$U-size 64", ""),
    (f"{seeds.LAUNCH} '--x\x1b]0;t\a'", "unknown Megatron argument --x"),
    ("(" * 3000 + RUN, "of the script has ( that does not end"),
    ("${A:-" * 3000 + RUN, "of the script has { that does not end"),
    ("A=$(" * 3000 + RUN, "of the script has ( that does not end"),
]
DEEPSEEK, OLMO, GPT_OSS = "deepseek-ai/DeepSeek-V3", "allenai/OLMo-2-1124-7B", "openai/gpt-oss-20b"
CONFIGS: list[tuple[Any, str]] = [
    *(
        (catalogue(name, num_hidden_layers=10**9), "in config.json must be at least")
        for name in (DEEPSEEK, "Qwen/Qwen3-30B-A3B")
    ),
    (catalogue(OLMO, num_attention_heads=0), "in config.json must be at least"),
    (catalogue(GPT_OSS, swiglu_limit="x"), "in config.json must be a number from"),
    (catalogue(GPT_OSS, swiglu_limit=[1]), "in config.json must be a number from"),
    (catalogue(DEEPSEEK, moe_layer_freq="²"), "in config.json must be a whole number"),
    ({**seeds.LLAMA, "model_type": "\x1b[2J"}, ""),
    ({**seeds.LLAMA, "_name_or_path": "[/red]x"}, ""),
]
CONFIG_TEXTS: list[tuple[str, str]] = [
    (JSON + ', "a": NaN}', "config.json contains NaN, which is not JSON"),
    (JSON + ', "a": ' + "[" * 5000, "config.json is not a usable JSON document"),
    (JSON + f', "a": {ODD_DIGITS}}}', "config.json is not a usable JSON document"),
    (JSON + ', "hidden_size": 64}', "appears twice in one JSON object"),
]
WORDS: list[tuple[list[str], str]] = [
    ([*seeds.SMALL.split(), *more], sentence)
    for more, sentence in (
        (["--num-experts", "4", "--moe-layer-freq", "²"], "is neither a whole number nor a list expression"),
        (["--num-experts", "4", "--moe-layer-freq", "[²]"], "is not a sum of repeated"),
        (["--num-experts", "4", "--moe-layer-freq=--5"], "is neither a whole number nor a list expression"),
        (["--num-experts", "4", "--moe-layer-freq", ODD_DIGITS], "moe_layer_freq"),
        (["--num-experts", "4", "--moe-layer-freq", "+".join(["[0]*99999"] * 600)], "moe_layer_freq"),
        (["--hierarchical-context-parallel-sizes", "²", "2"], "--hierarchical-context-parallel-sizes"),
        (["--\x1b[31m"], "--vocab-size takes one value, but"),
        (["--pipeline-model-parallel-layout", "(t*11111" + "*11111" * 11], ""),
        (["--pipeline-model-parallel-layout", "(t*99999)*14000"], ""),
    )
]
BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 9))
YAML: list[tuple[str, str]] = [
    (BOMB, "values; a run description does not"),
    ("num_gpus: !!int ''", "is not a value of !!int"),
    ("num_gpus: !!bool foo", "is not a value of !!bool"),
    ("num_gpus: !!float ''", "is not a value of !!float"),
    ("num_gpus: !!timestamp foo", "is not one of !!str, !!int, !!float, !!bool, !!null, !!map,"),
    ("training: {num_gpus: " + ":".join(["1"] * 3000) + "}", "line"),
    ("training: {num_gpus: " + ":".join(["1"] * 3000) + ".5}", "line"),
    ("model: {name: Qwen/Qwen3--8B}", "is neither a file nor a Hub id"),
    (
        "model: {name: Qwen/Qwen3-0.6B}\nparallelism: {cp_comm_type: -1}",
        "must be a word, or a list of one for each layer",
    ),
    ("model: {name: Qwen/Qwen3-0.6B}\ntraining: {cuda_graph_modules: 5}", "must be a list of words"),
    ("model: {name: Qwen/Qwen3-0.6B}\ntraining: {transformer_engine_version: '2.²'}", "transformer_engine_version"),
    ("ENV_VARS: {GPUS_PER_NODE: '²'}\nMODEL_ARGS: {--num-layers: 2}", "GPUS_PER_NODE='²' is no count"),
    ("".join(f"k{n}: 1\n" for n in range(900)), "unknown Megatron arguments --k0, --k1"),
    ("a: &a [*a]", "values; a run description does not"),
    ("[" * 5000, "is not a usable YAML document"),
]
BRIDGES: list[tuple[Any, str]] = [
    (
        {"model": {**seeds.DENSE, "pipeline_model_parallel_layout": [1]}},
        "pipeline_model_parallel_layout must be a string or a list",
    ),
    (
        {"model": seeds.DENSE, "peft": {"type": "lora", "target_modules": 5}},
        "is not modelled; give names of linears such as linear_qkv",
    ),
    (
        {"model": {**seeds.DENSE, "tensor_model_parallel_size": "x" * 10}, "data_parallel_size": 10**9},
        "tensor_model_parallel_size",
    ),
    ({"model": {**seeds.DENSE, "cp_comm_type": 5}}, "must be a word, or a list of one for each layer"),
]
EXPRESSIONS: list[tuple[str, str]] = [
    ("layout (t*11111" + "*11111" * 11, "stands for more than 2000 layers or stages"),
    ("layout (t*99999)*14000", "layers or stages, the most that is accepted; check its"),
    ("layout " + "|*100000" * 1000, "pipeline_model_parallel_layout"),
    ("freq " + "+".join(["[0]*99999"] * 800), "moe_layer_freq"),
    ("freq " + "(" * 9000 + "[0]", "moe_layer_freq"),
    ("freq ²", "is neither a whole number nor a list expression"),
    ("freq [²]", "is not a sum of repeated"),
    ("freq --5", "is neither a whole number nor a list expression"),
    ("pattern " + "M/" * 4000 + "M", "sub-layers for num_layers"),
]
LOGS: list[tuple[str, str]] = [
    (
        f"[Rank 0] (after 2 iterations) memory (MB) | allocated: {figure} | max allocated: 2.0",
        "allocated must be a number of MB",
    )
    for figure in ("1e999", "1.2.3", ".", ODD_DIGITS)
] + [
    (
        f"[Rank {ODD_DIGITS}] (after 2 iterations) memory (MB) | allocated: 1 | max allocated: 2.0",
        "rank and iteration must be whole",
    )
]
RUNS: list[tuple[Any, str]] = [
    (run(features=5), "features must be a list of text, not"),
    (run(group=[]), "group must be text, not []"),
    (run(family=None), "family must be text, not None"),
    (run(env=5), "env must be an object of text, not"),
    (run(settings=[1]), "settings must be an object, not ["),
    (run(settings={"num_gpus": 4}), "settings must not hold num_gpus"),
    *((run(settings={name: 4}), "is no setting") for name in ("cls", "args")),
]
STEPS: list[tuple[Any, str]] = [
    (step(settings=[]), "settings must be an object, not []"),
    (step(settings=None), "settings must be an object, not None"),
    (step(settings={"cls": 4}), "steps.jsonl line"),
    (step(settings={"num_gpus": 4}), "settings must not hold num_gpus; it is a key of the record"),
    (step(tokens_per_s_gpu=float("nan")), "tokens_per_s_gpu is not finite, or a whole number of more"),
    (step(tokens_per_s_gpu=1e308), "tokens_per_s_gpu must be a number of tokens per second from"),
    (step(tokens_per_s_gpu=10**400), "tokens_per_s_gpu is not finite, or a whole number of more"),
    (
        {"1": {"model": "-", "num_gpus": 8, "tokens_per_s_gpu": 9000.0}},
        "model must be a model of the catalogue, a Hub id, or the",
    ),
    (
        {"1": {"bridge": "/etc/passwd", "num_gpus": 8, "tokens_per_s_gpu": 9000.0}},
        "bridge must be the path of a file below",
    ),
]
OPTIONS: list[tuple[list[str], str]] = [
    (
        "estimate Qwen/Qwen3-0.6B --linear-attention-freq --json".split(),
        "takes a value, but the option --json follows it",
    ),
    ("estimate Qwen/Qwen3--8B".split(), "is neither a file nor a Hub id"),
    ("estimate a..b".split(), "is neither a file nor a Hub id"),
    ("estimate \x1b[31mx".split(), "is neither a file nor a Hub id"),
    ("estimate [/red]x".split(), "is neither a file nor a Hub id"),
    ("estimate Qwen/Qwen3-0.6B --gpu \x1b[31m".split(), "`megatron-memory gpus` lists the known ones"),
    (f"estimate Qwen/Qwen3-0.6B --recompute-num-layers {ODD_DIGITS}".split(), "Invalid value for"),
    (
        [
            "compare",
            "�",
            "--layout",
            "tp=1",
            "--layout",
            "tp=2",
            "--num-gpus",
            "8",
            "--output",
            "u.csv",
            "--format",
            "csv",
        ],
        "is neither a file nor a Hub id",
    ),
    ("estimate Qwen/Qwen3-0.6B --transformer-engine-version 2.²".split(), "transformer_engine_version"),
]
PLANS: list[tuple[list[str], str]] = [
    (
        [
            "plan",
            "Qwen/Qwen3-0.6B",
            "--num-gpus",
            "8",
            "--tp",
            "1",
            "--cp",
            "1",
            "--pp",
            "1",
            "--recompute",
            "block:²",
            "--json",
        ],
        "is not none, full, block:N, uniform:N or modules joined by",
    ),
    (
        f"plan Qwen/Qwen3-0.6B --num-gpus 8 --tp 1 --cp 1 --pp 1 --recompute block:{ODD_DIGITS} --json".split(),
        "recompute",
    ),
    (
        [
            "plan",
            "Qwen/Qwen3-0.6B",
            "--num-gpus",
            "8",
            "--tp",
            "1",
            "--cp",
            "1",
            "--pp",
            "1",
            "--global-batch-size",
            "1099511627776",
            "--json",
        ],
        "",
    ),
    (
        ["plan", "Qwen/Qwen3-0.6B", "--num-gpus", "8", "--tp", "3", "--json"],
        "no layout of the space is legal: num_attention_heads is not divisible",
    ),
]
QWEN = "Qwen/Qwen3-0.6B"
REQUESTS: list[tuple[Any, str]] = [
    (request("estimate", model="\0"), "is neither a file nor a Hub id"),
    (request("advise", model="\ud800x", num_gpus=8), "is neither a file nor a Hub id"),
    (
        request(
            "estimate",
            model="moonshotai/Kimi-K3",
            num_gpus=8,
            settings={"num_layers_per_virtual_pipeline_stage": 0, "pp": 2},
        ),
        "num_layers_per_virtual_pipeline_stage=0 must be at least 1",
    ),
    (request("estimate", model="/etc/passwd"), "files are opened below the folder"),
    (
        request("plan", model=QWEN, num_gpus=8, settings={"global_batch_size": {}}),
        "global_batch_size={} must be a whole number between",
    ),
    (request("estimate", model=QWEN, settings={"tp": "x" * 100_000}), "tensor_model_parallel_size"),
    (request("estimate", text=BOMB), "values; a run description does not"),
    (request("compare", models=[QWEN] * 1000), "compare takes at most"),
]
NEMO: dict[str, Any] = {
    "policy": {"model_name": "Qwen/Qwen3-0.6B", "megatron_cfg": {"enabled": True}},
    "defaults": "grpo_math_1B_megatron.yaml",
}
TREES: list[tuple[Any, str]] = [
    ({**NEMO, "policy": {**NEMO["policy"], "num_experts": 2**40}}, "num_moe_experts=1099511627776 is more than"),
    (
        {"system": {"tensor_model_parallel_size": 2, "\x1b[31mx": 1}, "model": {"num_layers": "x" * 2000}},
        "--num-layers=",
    ),
    ({"model": "wen" * 400 + "/Qwen3-0.6B", "max_length": 64, "packing": True}, ""),
    ({"model": "Qwen/Qwen3-0.6B", "max_length": True, "packing": True}, "max_length is True, no whole number"),
    ({"model": "-", "max_length": 64, "packing": True, "seed": 1}, "standard input is no model"),
]
DIALECT_WORDS: list[tuple[list[str], str]] = [
    (["flagscale/train/gpt.py", "-mtp_num_layers", "\0?\0"], "holds a null byte"),
    (
        ["train.py", "--rollout-batch-size", "4", "--tensor-m\0?1\0", "--num-layers", "2"],
        "the longest sample is not known",
    ),
    (["megatron sft", "--model", "Qwen/Qwen3-0.6B", "--max_length"], "max_length is True"),
]
SETS: list[tuple[Any, str]] = [
    (
        {"file": {"defaults": [{"--vocab-size": "\ud800"}], "experiment": {"runner": {}}}, "set": {}},
        "is not there; put it beside the run's file",
    ),
]
KNOWN: dict[str, list[tuple[Any, str]]] = {
    "yaml_set": SETS,
    "dialect_tree": TREES, "dialect_words": list(DIALECT_WORDS),
    "shell": list(SHELL), "hf_tree": CONFIGS, "hf_text": list(CONFIG_TEXTS), "arguments": list(WORDS), "yaml_text": list(YAML),
    "bridge_tree": BRIDGES, "expressions": list(EXPRESSIONS), "logs": list(LOGS), "against": RUNS, "calibrate": STEPS,
    "options": list(OPTIONS), "plan": list(PLANS), "mcp": REQUESTS,
}  # fmt: skip
