"""Launch scripts are read as bash runs them, or refused by name: real bash is the judge."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from megatron_memory_estimator import ConfigError
from megatron_memory_estimator.inputs.megatron.files import Caller, from_script
from megatron_memory_estimator.inputs.shell.programs import OF_WORDS
from megatron_memory_estimator.inputs.shell.script import read_script
from megatron_memory_estimator.inputs.shell.values import (
    Value,
    bare,
    in_doubt,
    outside_in,
    readable,
    unquoted,
    unset,
    vanishes,
)

from .bash import Bash
from .shell_scripts import scripts

SCRIPTS = int(os.environ.get("MANY_SCRIPTS", "300"))
"""Distinct random scripts beside bash; `make test-all` has 20,000."""
CHUNKS = max(2, SCRIPTS // 1000)

CALLERS: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("4",),
    ("8", "two words"),
    ("--a", "2", "x"),
    ("-a", "-b", "7", "--", "rest"),
    ("-ab7", "y"),
)
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the judge")


def distinct(chunk: int) -> Iterator[str]:
    """Scripts of one chunk, none of them twice and none in another chunk."""
    random, seen = Random(chunk), set[str]()
    while len(seen) < -(-SCRIPTS // CHUNKS):
        script = scripts().draw(random)
        if zlib.crc32(script.encode()) % CHUNKS == chunk and script not in seen:
            seen.add(script)
            yield script


def caller(script: str) -> tuple[str, ...]:
    """The words that a script is given: some are options, most are none."""
    chosen = CALLERS[zlib.crc32(script.encode()[::-1]) % len(CALLERS)]
    takes = any(one in script for one in ("getopts", "$@", "$*", "shift"))
    return chosen if takes or not any(word.startswith("-") for word in chosen) else ()


def minimal(bash: Bash, script: str) -> str:
    """The script without the lines that may go, while bash still launches and the reader still reads it otherwise."""
    lines = script.splitlines()
    for size in (4, 3, 2, 1, 1):
        for at in reversed(range(len(lines) - size + 1)):
            shorter = [*lines[:at], *lines[at + size :]]
            text = "\n".join(shorter) + "\n"
            if bash.compare(text, caller(script)) in WRONG and bash.launches(text, caller(script)):
                lines = shorter
    return "\n".join(lines)


WRONG = ("different", "different environment", "said")


@needs_bash
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_scripts_are_read_as_bash_runs_them(chunk: int, tmp_path: Path) -> None:
    bash = Bash(tmp_path)
    for script in distinct(chunk):
        found = bash.compare(script, caller(script))
        if found in WRONG:
            pytest.fail(f"{found}:\n{minimal(bash, script)}\n\nof\n{script}")
    print(dict(bash.outcomes))
    assert bash.outcomes.total() == -(-SCRIPTS // CHUNKS)
    assert bash.outcomes["same"] > bash.outcomes.total() // 3


ARGS = "ARGS=(--num-layers 8 --hidden-size 4096)\n"
LAUNCH = '\ntorchrun --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}" $V'
AS_BASH = [
    'BIG=0\n[ "$BIG" = 1 ] && ARGS+=(--num-layers 64)',
    'TP=2\n[ -n "$TP" ] || TP=8\nV=$TP',
    "false && V=1",
    "test 1 = 2 && V=1",
    "A=1; [ $A = 1 ] && V=yes || V=no",
    "! true && V=1",
    "if [ 1 = 1 ] && [ 2 = 3 ]; [ 4 = 4 ]; then V=1; fi",
    "V=4; setup() { V=9; }; setup",
    "V=1; unset V; V=$V-",
    "V=4; ((V=8))",
    "V=4; ((V++))",
    "V=4; let V=8",
    "read V <<< 8",
    "read V <<EOF\n8\nEOF",
    "printf -v V %d 8",
    "V=4; (V=8)",
    "V=4; true | V=8",
    "V=4; V=8 & wait",
    "V=4; V=8 true",
    "V=4; [[ a > b ]] && V=8",
    "V=$'1'",
    "V='a{1,2}'; set -- a{1,2}; V=$*",
    'V="a \\\nb"',
    "A=1; B=x\nV=${A:+$B}${C:-d}${#B}",
    "f() { local V=3; g; }; g() { echo $V; }; V=2; V=$(f)$V",
    "for i in 1 2 3; do [ $i = 2 ] && continue; V+=$i; done",
    "n=0; until [ $n -ge 3 ]; do n=$((n+1)); done; V=$n",
    "case abc in a*) V=1 ;& x) V=$V-2 ;; *) V=3;; esac",
    "declare -A M=([a]=1 [b]=2); K=b; V=${M[$K]}",
    "set -- --tp 4; while [[ $# -gt 0 ]]; do case $1 in --tp) V=$2; shift 2;; *) shift;; esac; done",
    "V=$(seq 2 3 8)",
    "V=$(expr 6 \\* 7)",
    "V=$((2 ** 10 - (7 % 4) * 3))",
    "IFS=, read -r A B <<< 1,2,3; V=$B-$A",
    "A=(a b c); unset 'A[1]'; V=${A[*]}${#A[@]}",
    "x=V; V=7; V=${!x}",
    "V=model-7b.json; V=${V%.*}; V=${V#*-}; V=${V^^}",
    "set -e; false || true; V=3",
    "B=0; read V <<< $((B++)); V=$V$B",
    "V+=${V:=1}x",
    "false; V=$(true)$?",
    "for ((i = 0; i < 1; i++)); do false; done; V=$?",
    "while [ -z $A ]; do A=1; false; done; V=$?",
    "if [ a -gt 1 ]; then V=1; else V=$?; fi",
    'IFS=:; R=(1 2); V="${!R[@]}x"',
    "true; V=$(false)$?",
    'S=abc; V="${S[@]:1}-${S[@]:0:1}-${S[*]: -1}"',
    'S="a b"; V="k${S[@]:9}-${S[@]:2}"',
]


@needs_bash
@pytest.mark.parametrize("text", AS_BASH)
def test_constructs_are_read_as_bash_reads_them(text: str, tmp_path: Path) -> None:
    assert Bash(tmp_path).compare(ARGS + text + LAUNCH) == "same"


CASES = (Path(__file__).parent / "shell_cases.txt").read_text().split("\n===\n")


@needs_bash
def test_hundreds_of_corner_cases_are_never_different_from_bash(tmp_path: Path) -> None:
    bash = Bash(tmp_path)
    for case in CASES:
        assert bash.compare(case.rstrip("\n") + '\ntorchrun train.py "$V" --e\n') not in WRONG, case
    assert bash.outcomes["same"] > len(CASES) // 2


LOST = [
    "--log-interval 1 $(cat extra.txt)",
    "--log-interval 1 $X",
    "--log-interval 1 $A$B",
    "--log-interval 1 $NESTED",
    "--log-interval $LEADING",
    '--log-interval 1 "${LOOP[@]}"',
]


@pytest.mark.parametrize("words", LOST)
def test_no_argument_is_lost_behind_one_without_effect(words: str) -> None:
    """Words that may hold arguments are asked for wherever they stand."""
    script = """
X=$(python make_args.py)
[ -f x ] && A="--fp8-format hybrid"; [ -f y ] && B=--bf16
if [ -f a ]; then NESTED="--log-interval 5"; elif [ -f b ]; then NESTED="--fp8-format hybrid"; else NESTED=; fi
if [ -f a ]; then LEADING="5 --fp8-format hybrid"; else LEADING=6; fi
for f in $(ls); do LOOP+=(--fp8-format hybrid); done
"""
    with pytest.raises(ConfigError):
        from_script(
            f"{script}torchrun pretrain_gpt.py --num-layers 4 {words}", "run.sh", "run", Caller(), ignore_unknown=False
        ).words.settled()


def test_what_is_no_argument_for_bash_is_none_here() -> None:
    """Both ways are known: bash passes `x-`, or `x---fp8-format` and `hybrid`, and no --fp8-format."""
    script = '[ -f x ] && A="--fp8-format hybrid"\ntorchrun pretrain_gpt.py --num-layers 4 --tensorboard-dir x-$A'
    found = from_script(script, "run.sh", "run", Caller(), ignore_unknown=False).words.settled()
    assert found.values["num_layers"] == 4 and "fp8" not in found.values


REFUSED = [
    ("declare D=a{x,}$C", "declare with braces beside an expansion"),
    ("select x in a b; do :; done", "select, which is not read"),
    ("coproc cat", "coproc, which is not read"),
    ("shopt -s lastpipe; echo 4 | read V", "shopt lastpipe is not read"),
    ("declare -u V=a", "declare -u is not read"),
    ("declare -n V=A", "declare -n is not read"),
    ("V=${A@Q}", "is not read"),
    ("[[ $V == @(a|b) ]]", "is not read"),
    ("readonly V=1; V=2", "V is readonly and set again"),
    ("set -o posix", "posix is not read"),
    ("V=$((1/0))", "cannot be worked out"),
    ("V=$((3a))", "cannot be worked out"),
    ("V=$((08))", "cannot be worked out"),
    ("unknown | bash", "commands from a pipe or a file that is not known are not read"),
    ("function f", "a function f without a body"),
    ("f()", "a function f without a body"),
    ("A=(x", "an array A that does not end"),
    ("if true; then", "has a if that does not end"),
    ("case x in a) V=1;;", "a pattern of case that is not read"),
    ("case", "has a case that does not end"),
    ("echo ${A:-b", "an expansion that does not end"),
    ("echo $B{a,b}", "right before braces is not read"),
    ('S=($C k); unset "S[0]"', "whose elements are not known, is not read"),
    ("fi", "fi where a command should begin"),
    ("a ;; b", "where a command should"),
    ("trap 'V=3' DEBUG", "a trap on DEBUG that sets variables is not read"),
]


@pytest.mark.parametrize(("text", "sentence"), REFUSED)
def test_what_is_not_read_is_refused_by_name(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_script(text + "\npython pretrain_gpt.py $V")
    assert sentence in str(error.value)


def words(text: str, **given: str) -> list[str]:
    return [readable(word) for word in read_script(text, given).words]


def test_what_a_condition_in_doubt_changes_is_in_doubt_and_nothing_else() -> None:
    found = read_script("A=(--lr 1)\nif [ -f x ]; then A+=(--load y); B=2; else B=3; fi\npython train.py ${A[@]} $B 4")
    assert found.words[:2] == ["--lr", "1"] and found.words[-1] == "4"
    assert [in_doubt(word) for word in found.words[2:4]] == [True, True]
    choices = [doubt.choices for doubt in found.doubts]
    assert (("--load", "y"), ()) in choices and (("2",), ("3",)) in choices


@pytest.mark.parametrize("asked", ["${!S[@]}", "${#S[@]}", "${S[1]}"])
def test_places_behind_an_element_that_may_be_none_are_in_doubt(asked: str) -> None:
    found = read_script(f"S=($C k)\npython train.py {asked}")
    assert [in_doubt(word) for word in found.words] == [asked != "${#S[@]}"]


DEVICE = """DEVICE=${DEVICE:-$(probe && echo npu || echo gpu)}
case $DEVICE in gpu) TP=2 PP=1 ;; npu) TP=4 PP=2 ;; esac
python train.py --tp $TP --pp $PP --ep ${EP:-1}"""


def test_the_variable_that_decides_a_condition_is_the_question() -> None:
    found = read_script(DEVICE)
    asked = [one for word in found.words for one in outside_in(word)]
    assert [(one.name, one.option) for one in asked] == [("TP", "DEVICE"), ("PP", "DEVICE")]
    assert all("compares DEVICE with gpu or npu" in one.why for one in asked)
    assert asked[0].choices == (("2",), ("4",), (unset("TP"),))
    assert words(DEVICE, DEVICE="npu") == ["--tp", "4", "--pp", "2", "--ep", "1"]


def test_what_one_condition_decides_stays_together() -> None:
    """Each way is followed by itself: B is 2 where A is 1, so that no condition on both is in doubt."""
    text = "if [ -f x ]; then A=1 B=2; else A=3 B=6; fi\n[ $((A * 2)) = $B ] && C=same || C=other\npython train.py $C"
    assert words(text) == ["same"]


def test_ways_that_leave_the_same_state_are_one() -> None:
    quiet = 'check() { [ -f "$1" ] || return 0; echo found; }\n' + "check x\n" * 200
    assert words(quiet + "for i in 1 2 3; do [ -f $i ] && continue; A+=$i; done\npython train.py ok")[-1] == "ok"


@pytest.mark.parametrize("body", ["V{0}=1", "A+=({0})", "[ -f y{0} ] && A=z"])
def test_more_ways_than_can_be_followed_are_questions_and_no_guess(body: str) -> None:
    lines = "".join(f"if [ -f x{at} ]; then {body.format(at)}; fi\n" for at in range(40))
    found = read_script(lines + "python train.py --seed 1 ${V39:-0} ${A[@]}")
    assert found.words[:2] == ["--seed", "1"]
    assert any(map(in_doubt, found.words[2:]))


def test_exit_ends_a_subshell_alone() -> None:
    found = read_script("V=$([ -f x ] && exit; echo a)\npython train.py $V").words[0]
    assert [one.choices for one in outside_in(found)] == [((), ("a",))]


def test_the_same_in_both_branches_is_no_doubt() -> None:
    assert words("if [ -f x ]; then A=2; else A=2; fi\npython train.py $A") == ["2"]
    assert words("if unknown; then exit 1; fi\npython train.py 3") == ["3"]


def test_a_choice_between_two_runs_is_refused() -> None:
    text = "if [ -f x ]; then\npython train.py 1\nelse\npython train.py 2\nfi"
    with pytest.raises(ConfigError, match=r"at line 2 or at line 4, depends on `\[ -f x \]`"):
        read_script(text)


def test_positional_parameters_and_headers() -> None:
    assert words("python train.py ${1:-a} $2 $#", **{"2": "b"}) == ["a", "b", "2"]
    assert words("#SBATCH --nodes=16 --ntasks-per-node=8\npython train.py ${SLURM_NNODES:-1} $SLURM_NTASKS") == [
        "16",
        "128",
    ]
    assert words("python train.py ${SLURM_NNODES:-1}") == ["1"]


@pytest.mark.parametrize("name", ["SLURM_NNODES", "SLURM_JOB_NUM_NODES"])
def test_what_sbatch_is_told_wins_over_the_script_s_own_lines(name: str) -> None:
    """`sbatch --nodes=2` in front of `#SBATCH --nodes=16`: both variables say 2, and so many tasks start."""
    text = (
        "#SBATCH --nodes=16 --ntasks-per-node=8\nsrun python train.py $SLURM_NNODES $SLURM_JOB_NUM_NODES $SLURM_NTASKS"
    )
    found = read_script(text, {name: "2"})
    assert found.words == ["2", "2", "16"] and found.num_gpus == 16


def test_a_shell_of_its_own_sees_exported_variables_only() -> None:
    text = "A=1; export B=2\nbash -c 'python train.py $A $B $0 $1' x y"
    assert words(text) == ["$A", "2", "(unknown)", "y"]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("run_text_generation_server.py", "it is not a training run"),
        ("tools/run_inference_performance_test.py", "it is not a training run"),
        ("run_evaluate.py", "it is not a training run"),
    ],
)
def test_servers_and_evaluators_are_not_training(entry: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_script(f"torchrun --nproc_per_node 8 {entry} --num-layers 2")
    both = f"torchrun pretrain_gpt.py --num-layers 4\ntorchrun {entry} --num-layers 2"
    assert read_script(both).words == ["--num-layers", "4"]


GROWING = [
    "A=xxxxxxxx\n" + 'A="$A$A"\n' * 40,
    "A=xxxxxxxx\n" + 'A+="$A"\n' * 40,
    "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
    "A=xxxxxxxx\n" + "unset B; : ${B:=$A$A}; A=$B\n" * 40,
    "A=xxxxxxxx\n" + 'A="$A$A"\n' * 14 + "set -- $A\n" * 100,
    "A=xxxxxxxx\n" + 'A="$A$A"\n' * 14 + 'printf -v B "%s" $A\n' * 400,
    "A=xxxxxxxx\n" + 'eval "A=$A$A"\n' * 40,
    'A="A=\\$A\\$A; eval \\"\\$E\\""; E=$A; eval "$A"',
    "f() { f; f; }; f",
    "A={a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}; set -- " + "{a,b}" * 30,
    "for i in {1..9999}; do for j in {1..9999}; do A=1; done; done",
    "while true; do A=x$A; done",
    "A=" + "$(echo " * 200 + ")" * 200,
    "A=" + "$((" * 200 + "))" * 200,
    "A=$((" + "-" * 9000 + "1))",
    "A=$((" + "9" * 400 + "/3))",
    "if true; then " * 300 + "fi; " * 300,
    "V=" + "a" * 2000 + "\nV=${V//*a*a*a*a*a*a*b/x}",
    "if [ -f x ]; then A=1; fi\n" * 400,
    "A=$(x)$(y)$(z)\n" * 400,
    "for i in $(x); do " * 10 + "A=$i" + "; done" * 10,
]


@pytest.mark.parametrize("text", GROWING, ids=range(len(GROWING)))
def test_no_script_of_a_few_bytes_grows(text: str) -> None:
    import tracemalloc

    tracemalloc.start()
    with suppress(ConfigError):
        read_script(text + "\npython train.py 1")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 200e6


def test_what_slurm_sets_is_not_missed() -> None:
    """A script with options of sbatch runs where Slurm sets its variables; one without them does not."""
    body = "set -u\nid=$SLURM_JOBID\npython train.py --lr 1"
    assert read_script("#!/bin/bash\n#SBATCH --nodes=2\n" + body).notes == []
    assert any("SLURM_JOBID is set nowhere" in note for note in read_script("#!/bin/bash\n" + body).notes)


GETOPT = """TEMP=$(getopt -o m:t: --long model:,tp: -n run -- "$@") || exit 1
eval set -- "$TEMP"
while true; do
  case "$1" in -m|--model) M=$2; shift 2;; -t|--tp) TP=$2; shift 2;; --) shift; break;; esac
done
torchrun train.py "$M" $TP "$@"
"""


POOL = "-m x --model --model=a_b -t4 -vq --tp 2 --verbose -- rest --opt --opt=3 -o5 it's --mod -z"


@needs_bash
@pytest.mark.skipif(shutil.which("getopt") is None, reason="getopt is the judge")
def test_words_are_sorted_out_as_getopt_does() -> None:
    random = Random(1)
    pool = [*POOL.split(), "a b", ""]
    for _ in range(300):
        words = [random.choice(pool) for _ in range(random.randint(0, 6))]
        given = ["-o", "m:t:vqo::", "--long", "model:,tp:,verbose,opt::", "-n", "run", "--", *words]
        ran = subprocess.run(["getopt", *given], capture_output=True, text=True, check=False)
        assert OF_WORDS["getopt"](given) == (ran.stdout if ran.returncode == 0 else None), words


@pytest.mark.parametrize("words", [("--model", "a b", "-t", "4", "x"), ("x", "-t4", "--mod=y"), ()])
def test_a_script_that_reads_its_words_by_getopt(words: tuple[str, ...]) -> None:
    found = read_script(GETOPT, None, words).words
    told = {"--model": "a b", "x": "y"}
    assert [bare(word) for word in found if not unset_word(word)] == ([told[words[0]], "4", "x"] if words else [])


def unset_word(word: Value) -> bool:
    """A word of a variable that nothing sets."""
    return vanishes(unquoted(word))
