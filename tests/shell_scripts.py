# ruff: noqa: E501
"""Random shell scripts that are safe to run: assignments, conditions, loops, functions and expansions around one launch."""

from __future__ import annotations

from collections.abc import Callable

from . import draws as st

NAMES = st.sampled_from(["A", "B", "C", "D"])
ARRAYS = st.sampled_from(["R", "S"])
FUNCTIONS = st.sampled_from(["f", "g"])
NUMBERS = st.integers(-3, 12).map(str)
PLAIN = st.sampled_from(
    ["x", "yy", "8", "2", "0", "1", "--lr", "a-b", "p.q", "a/b/c.d", "v1_2", "on", "true", "false", "x=1", "007", "Z"]
)


def _expansion(draw: st.DrawFn, *, quoted: bool) -> str:
    name = draw(NAMES)
    plain = draw(PLAIN)
    forms: list[Callable[[], str]] = [
        lambda: f"${name}", lambda: f"${{{name}}}", lambda: f"${{{name}:-{plain}}}", lambda: f"${{{name}-{plain}}}", lambda: f"${{{name}:+{plain}}}", lambda: f"${{{name}+{plain}}}",
        lambda: f"${{#{name}}}", lambda: f"${{{name}%.*}}", lambda: f"${{{name}##*/}}", lambda: f"${{{name}#*a}}", lambda: f"${{{name}%%b*}}", lambda: f"${{{name}/a/Q}}",
        lambda: f"${{{name}//[0-9]/n}}", lambda: f"${{{name}:1}}", lambda: f"${{{name}:0:2}}", lambda: f"${{{name}^^}}", lambda: f"${{{name},}}", lambda: f"${{{name}:={plain}}}",
        lambda: f"$(({draw(arithmetic())}))", lambda: f"$(echo {plain} ${name})", lambda: f"`echo ${name}`", lambda: "$#", lambda: "$1", lambda: "$@", lambda: "$*", lambda: "$?",
        lambda: f"${{{draw(ARRAYS)}[@]}}", lambda: f"${{{draw(ARRAYS)}[*]}}", lambda: f"${{#{draw(ARRAYS)}[@]}}", lambda: f"${{{draw(ARRAYS)}[0]}}", lambda: f"${{{draw(ARRAYS)}[1]}}",
        lambda: f"${{{draw(ARRAYS)}}}", lambda: f"${{{draw(ARRAYS)}[@]:1}}", lambda: f"${{!{draw(ARRAYS)}[@]}}", lambda: f"$(seq {draw(st.integers(1, 4))})",
        lambda: f"$(expr {draw(st.integers(0, 9))} + {draw(st.integers(1, 9))})", lambda: f"$(basename {plain})", lambda: f"$(printf '%s,' {plain} ${name})",
        lambda: f"${{{name}:+--set ${name}}}", lambda: "$(unknown)", lambda: f"${{{name}}}z",
        lambda: "${@: -1}", lambda: "${@:2}", lambda: "${!#}", lambda: f"${{!{name}:-{plain}}}", lambda: f"${{{draw(ARRAYS)}[@]: -1}}", lambda: "${!A*}", lambda: "${0##*/}",
        lambda: f"${{{name}//[[:digit:]]/d}}", lambda: f"${{{name}##*[[:alpha:]]}}", lambda: "$(two | wc -l)",
    ]  # fmt: skip
    return draw(st.sampled_from(forms))()


@st.composite
def arithmetic(draw: st.DrawFn) -> str:
    """An expression."""
    one = st.one_of(st.integers(0, 20).map(str), NAMES, NAMES.map(lambda n: f"${n}"))
    signs = st.sampled_from(["+", "-", "*", "/", "%", "<", "==", "&&", "||", "<<", "&", ">="])
    forms: list[Callable[[], str]] = [
        lambda: draw(one),
        lambda: f"{draw(one)} {draw(signs)} {draw(one)}",
        lambda: f"({draw(one)} {draw(signs)} {draw(one)}) {draw(signs)} {draw(one)}",
        lambda: f"{draw(one)} > {draw(one)} ? {draw(one)} : {draw(one)}",
        lambda: f"{draw(NAMES)}{draw(st.sampled_from(['=', '+=', '*=']))}{draw(one)}",
        lambda: f"{draw(NAMES)}++",
        lambda: f"-{draw(one)} ** 2",
        lambda: f"!{draw(one)}",
    ]
    return draw(st.sampled_from(forms))()


@st.composite
def words(draw: st.DrawFn) -> str:
    """One word."""
    parts = []
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.integers(0, 8))
        if kind < 3:
            parts.append(draw(PLAIN))
        elif kind == 3:
            parts.append(f"'{draw(st.sampled_from(['a b', '$A', 'x', '', chr(34), 'a  c']))}'")
        elif kind in (4, 5):
            inner = (
                draw(st.sampled_from(["", "m n ", "k"]))
                + _expansion(draw, quoted=True)
                + draw(st.sampled_from(["", " t", "\\$A"]))
            )
            parts.append(f'"{inner}"')
        elif kind == 6:
            parts.append(
                draw(st.sampled_from(["{a,b}", "{1..3}", "\\ ", "\\$", "$'q\\tr'", "{", "}", "a{x,}b", "{c}"]))
            )
        else:
            parts.append(_expansion(draw, quoted=False))
    return "".join(parts)


@st.composite
def tests(draw: st.DrawFn) -> str:
    """A condition."""
    w, v = draw(words()), draw(PLAIN)
    quoted = f'"{_expansion(draw, quoted=True)}"'
    number = draw(NUMBERS)
    forms: list[Callable[[], str]] = [
        lambda: f"[ {quoted} = {v} ]", lambda: f"[ -n {quoted} ]", lambda: f"[ -z {quoted} ]", lambda: f"[ ${draw(NAMES)} -gt {number} ]", lambda: f"[ {quoted} != {v} ]",
        lambda: f"[[ {quoted} == {v} ]]", lambda: f"[[ ${draw(NAMES)} = {draw(st.sampled_from(['a*', '*', '[0-9]', 'x?', '8']))} ]]",
        lambda: f"[[ ${draw(NAMES)} == *[[:digit:]]* ]]", lambda: f"[[ -n ${draw(NAMES)} && {number} -lt 5 ]]", lambda: f"[[ -z ${draw(NAMES)} || ${draw(NAMES)} -eq {number} ]]", lambda: f"(({draw(arithmetic())}))",
        lambda: "true", lambda: "false", lambda: "unknown", lambda: f"test {quoted} = {v}", lambda: f"[ {number} -le 3 -a -n {quoted} ]", lambda: f"[ {w} ]", lambda: f"! [ {quoted} = {v} ]",
        lambda: f"[[ ! {quoted} < b ]]", lambda: f"[[ -v {draw(NAMES)} ]]", lambda: f"[ ! -n {quoted} ]", lambda: f"[[ ( {quoted} == x || 1 == 1 ) ]]", lambda: f"let {draw(NAMES)}={number}",
        lambda: f"[ -f {v} ]", lambda: f"[ {quoted} -eq {number} -o {number} -gt 2 ]", lambda: f"[[ {number} -ge {draw(NAMES)} ]]",
    ]  # fmt: skip
    return draw(st.sampled_from(forms))()


@st.composite
def statements(draw: st.DrawFn, depth: int = 0, *, loops: int = 0) -> str:
    """One statement."""
    name, array, w = draw(NAMES), draw(ARRAYS), draw(words())

    def inner() -> str:
        return draw(blocks(depth + 1, loops=loops))

    simple: list[Callable[[], str]] = [
        lambda: f"{name}={w}", lambda: f"{name}={draw(PLAIN)}", lambda: f"{name}={draw(NUMBERS)}", lambda: f"{name}+={w}", lambda: f'{name}="{_expansion(draw, quoted=True)} {draw(PLAIN)}"',
        lambda: f"{array}=({w} {draw(words())})", lambda: f"{array}+=({w})", lambda: f"{array}[1]={draw(PLAIN)}", lambda: f"{array}=()", lambda: f"unset {name}", lambda: f"unset {array}",
        lambda: f"(({draw(arithmetic())}))", lambda: f"let {name}={draw(st.integers(0, 9))}", lambda: f"read {name} B <<< {w}", lambda: f"read -r {name} <<EOF\n{draw(PLAIN)} ${name}\nEOF",
        lambda: f"printf -v {name} '%s-%s' {w} {draw(PLAIN)}", lambda: f"export {name}={w}", lambda: f"declare {name}={w}", lambda: f"declare -a {array}=({w})", lambda: f"export {name}",
        lambda: f"({name}={w})", lambda: f"true | {name}={draw(PLAIN)}", lambda: f"{name}={draw(PLAIN)} true", lambda: f"{name}={draw(PLAIN)} &\nwait", lambda: f": ${{{name}:={draw(PLAIN)}}}",
        lambda: f"set -- {w} {draw(PLAIN)}", lambda: "shift", lambda: f"eval {name}={draw(PLAIN)}", lambda: f'eval "{name}=\\"{_expansion(draw, quoted=True)}\\""', lambda: f"{name}={w}; {array}=(1 2)",
        lambda: f"{name}=$((${{{name}:-0}} + 1))", lambda: f"echo {w}", lambda: "unknown", lambda: f"unset '{array}[0]'", lambda: f"IFS=, read -r {name} B <<< 1,2,3", lambda: f"local_x={w}",
        lambda: f"{name}={draw(PLAIN)} B=${name}", lambda: f"{draw(FUNCTIONS)} {w} {draw(PLAIN)} 2> /dev/null", lambda: f"{name}=$({draw(FUNCTIONS)} {draw(PLAIN)})",
        lambda: f"bash -c 'A=7; torchrun train.py $A ${name}'", lambda: f"command true {w}", lambda: "IFS=:" if draw(st.integers(0, 9)) == 0 else "true", lambda: "cd .", lambda: "set -f; set +f",
        lambda: f"while getopts ':ab:c' {name}; do case ${name} in a) B=1 ;; b) C=$OPTARG ;; *) D=$OPTARG$OPTIND ;; esac; done; shift $((OPTIND - 1))",
        lambda: f"getopts ab: {name}", lambda: f"echo '{name}=7; torchrun train.py ${name} $B' | bash", lambda: f"echo : ${name} | bash -s q",
        lambda: f"echo {w} {draw(PLAIN)} | while read {name} B; do {array}+=(${name}); torchrun train.py ${name} $B; done",
        lambda: f"while read -r {name} B; do {array}+=(${name} $B); done <<< \"{draw(PLAIN)} ${name}\"", lambda: f"{name}=$(echo {w} ${name} | tr a-z A-Z)",
        lambda: f"{name}=$(echo {draw(PLAIN)},{draw(PLAIN)} | cut -d, -f{draw(st.integers(1, 3))})", lambda: f"{name}=$(echo {w} | wc -w)",
        lambda: f"{name}=$(echo {w} {draw(PLAIN)} | sed 's/{draw(st.sampled_from(['a', '  *', '[0-9]', 'b.', '^x', '[a-z]', '.$', '1', '-']))}/{draw(st.sampled_from(['', '_', ' ', 'y']))}/{draw(st.sampled_from(['', 'g']))}')",
        lambda: f"{array}=$IFS; IFS=, read -r {name} B <<< 4,5; IFS=${array}", lambda: f"{name}=$(echo ${name} | cut -d. -f1)",
        lambda: f'source "$(dirname "$0")/conf/{draw(st.sampled_from(["one", "two", "none"]))}.sh"', lambda: f'. "$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"/conf/one.sh {w}',
        lambda: f'bash "$(dirname "$0")/conf/run.sh" {w}', lambda: f"{name}=$(printf '%02d' {draw(st.integers(0, 120))})", lambda: f"declare -i {name}={draw(st.integers(0, 9))}; {name}+=2",
        lambda: f"{name}=$(cat <<< {draw(PLAIN)} | head -n 1)", lambda: f"export {name}; bash -c 'torchrun train.py ${name}'", lambda: f"{name}=$[ {draw(st.integers(0, 9))} * 2 ]",
    ]  # fmt: skip
    if depth >= 2:
        return draw(st.sampled_from(simple))()
    test, other = draw(tests()), draw(tests())
    compound: list[Callable[[], str]] = [
        lambda: f"if {test}; then\n{inner()}\nfi", lambda: f"if {test}; then\n{inner()}\nelse\n{inner()}\nfi",
        lambda: f"if {test}; then\n{inner()}\nelif {other}; then\n{inner()}\nelse\n{inner()}\nfi",
        lambda: f"{test} && {draw(st.sampled_from(simple))()}", lambda: f"{test} || {draw(st.sampled_from(simple))()}",
        lambda: f"{test} && {draw(st.sampled_from(simple))()} || {draw(st.sampled_from(simple))()}",
        lambda: f"{test} && {other} && {draw(st.sampled_from(simple))()}", lambda: f"{{ {inner()}\n}}", lambda: f"(\n{inner()}\n)",
        lambda: f"case {w} in\n{draw(PLAIN)}|x) {inner()} ;;\n[0-9]*) {inner()} ;{draw(st.sampled_from([';', '&', ';&']))}\n*) {inner()} ;;\nesac",
        lambda: f"for {name} in {w} {draw(words())}; do\n{draw(blocks(depth + 1, loops=loops + 1))}\ndone",
        lambda: f"for ((i=0; i<{draw(st.integers(0, 3))}; i++)); do\n{draw(blocks(depth + 1, loops=loops + 1))}\ndone",
        lambda: f"n=0; while [ $n -lt {draw(st.integers(0, 3))} ]; do\n{draw(blocks(depth + 1, loops=loops + 1))}\nn=$((n + 1)); done",
        lambda: f"{draw(FUNCTIONS)}() {{\n{inner()}\n}}", lambda: f"{draw(FUNCTIONS)}() {{\nlocal {name}={w}\n{inner()}\n{draw(st.sampled_from(['return 1', 'return', 'true']))}\n}}",
        lambda: draw(st.sampled_from(["break", "continue", "true"])) if loops else f"{test} && exit",
        lambda: f"{draw(FUNCTIONS)}() {{\n{inner()}\n{test} && return {draw(st.integers(0, 1))}\n{inner()}\n}}", lambda: f"if {test}; then {draw(st.sampled_from(['break', 'continue', 'return 2 2> /dev/null']))}; fi",
        lambda: f"while true; do\n[ $((++m{depth})) -gt 3 ] && break\n{draw(blocks(depth + 1, loops=loops + 1))}\n{test} && break\ndone",
        lambda: f"! {test} && {draw(st.sampled_from(simple))()}", lambda: f"{test}; {name}=$?",
        lambda: f"cat > job.sh <<EOF\ntorchrun train.py {draw(PLAIN)} ${name}\nEOF\nbash job.sh",
        lambda: f"set -e\n{draw(st.sampled_from(simple))()}\nset +e", lambda: f"if {test} && {other}; [ {draw(PLAIN)} ]; then {inner()}; fi",
    ]  # fmt: skip
    return draw(st.sampled_from([*simple, *compound]))()


@st.composite
def blocks(draw: st.DrawFn, depth: int, *, loops: int = 0) -> str:
    """Statements of a body."""
    return "\n".join(draw(st.lists(statements(depth, loops=loops), min_size=1, max_size=2)))


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """A whole script that ends with a launch."""
    head = draw(
        st.sampled_from(
            ["", "A=1; B=x; R=(a 'b c')\n", "A=8; C=on; S=(1 2 3)\n", "set -- one 'two three'\n", "f() { B=$1; }\n"]
        )
    )
    body = "\n".join(draw(st.lists(statements(), min_size=1, max_size=5)))
    tail = " ".join(draw(st.lists(words(), min_size=1, max_size=3)))
    shown = 'torchrun train.py "$A" "$B" $C ${D-none} "${R[@]}" ${S[@]} ' + tail
    return f"{head}{body}\n{shown}\n"
