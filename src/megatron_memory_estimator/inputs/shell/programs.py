"""Programs that a script would start: the training itself, and shells that are given a text or a file.

A shell that a script starts sees its environment only. What a few programs print follows from their words and from what they read:
`cat` of a here-document, `seq`, `expr`, `basename`, `dirname`, the filters `tr`, `cut`, `wc`, `sed`, `head`, `tail`; and arithmetic of
`python -c`, `awk`, `bc`.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise

from ...errors import ConfigError
from ...wording import plain
from .. import SCRIPTS
from ..environment import VARIABLES
from ..questions import LOST
from . import gpus
from .arithmetic import evaluated
from .gpus import gpus_of
from .grammar import Simple
from .input_output import changed, document, named, store, text_of_file
from .launches import Entry, Launch, entry_of, mentions
from .model_words import FOLDER, OF_MODEL, PROGRAM, words_of_model
from .parser import parsed
from .paths import ends, outside
from .state import Shell, State
from .values import (
    Array,
    Value,
    bare,
    base,
    head,
    in_doubt,
    partition,
    present,
    readable,
    size,
    unquoted,
    with_blanks,
)
from .words import NAME

SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
REMOTE = frozenset([
    "apptainer", "bsub", "clush", "docker", "enroot", "kubectl", "mpiexec", "mpirun", "parallel-ssh", "pdsh", "podman", "qsub", "ray",
    "salloc", "sbatch", "screen", "script", "singularity", "srun", "ssh", "su", "sudo", "timeout", "tmux", "xargs",
])  # fmt: skip
"""Programs that may run a text as a command."""
STARTING = (REMOTE - {"sbatch"}) | {"env", "torchrun"}
"""Programs that start a script by its name, without a shell."""
NAMED = rf"[^\s-]\S*(?:{'|'.join(map(re.escape, SCRIPTS))})"
"""A word that names a script."""
RAY = "ray.sub"
"""NeMo-RL's Slurm job, which runs the variable COMMAND on the nodes that it gets (`NVIDIA-NeMo/RL`, ray.sub)."""
QUIET = frozenset([
    "autopep8", "awk", "basename", "bc", "black", "cat", "chmod", "chown", "cp", "curl", "cut", "date", "df", "diff", "dirname",
    "dos2unix", "du", "egrep", "expr", "find", "flake8", "git", "grep", "head", "hostname", "isort", "killall", "less", "ln", "logger",
    "ls", "mail", "md5sum", "mkdir", "more", "mv", "mypy", "nano", "notify-send", "pgrep", "pip", "pip3", "pkill", "ps", "pylint",
    "pytest", "readlink", "realpath", "rg", "rm", "rsync", "ruff", "scancel", "scp", "sed", "seq", "sha256sum", "shellcheck", "sleep",
    "sort", "squeue", "stat", "tail", "tar", "tee", "test", "touch", "tr", "uniq", "unzip", "vi", "vim", "wc", "wget", "which", "yapf",
    "zip",
])  # fmt: skip
"""Programs that do not start their arguments."""
DEAF = re.compile(r"mkdir|sleep|date|torchrun|python3?|nvidia-smi|rm|chmod|touch|ls|seq|expr")
"""Programs that leave standard input to the next one."""


def program(shell: Shell, words: list[Value], env: dict[str, Value], node: Simple) -> None:
    """A command that is no function and no builtin."""
    while words and base(words[0]) in ("nohup", "time", "command", "setsid"):
        words = words[1:]
    shell.undecided()
    if not words:
        return
    name = base(words[0])
    state = shell.state
    if state.output is not None:
        text = output_of(shell, name, words[1:], node)
        if text is None:
            state.opaque = True
        else:
            state.output.append(text)
            if name != "expr":
                state.status = 0
    _writes(shell, name, words, node)
    if head(words[0]).startswith("--"):
        shell.note(
            f"{plain(node.source, 60)} is not passed to the program above it: a comment or an empty line ends that command"
        )
    elif name not in QUIET:
        _starts(shell, words, env, node)
    changed(shell, name, words[1:])
    state = shell.state
    if state.fed is not None and not DEAF.fullmatch(name) and not any(one.feeds for one in node.redirects):
        state.fed = "" if name in (*SHELLS, "cat", "tee") else None


def _starts(shell: Shell, words: list[Value], env: dict[str, Value], node: Simple) -> None:
    """Records a launch, or reads the text or the file that is given to a shell."""
    head_name = base(words[0])
    entry = entry_of(words, [*env, *shell.state.exported])
    if entry is not None:
        if head_name == "xargs":
            raise shell.refuse("xargs starts a training script with words that are not known")
        if entry.trains:
            launched(shell, words, entry, environment(shell, words[: entry.at], env), node)
        else:
            shell.others[entry.base] = None
        return
    if any(base(word) in gpus.TORCHRUN for word in words):
        shell.strangers.update((bare(word), None) for word in words if bare(word).endswith(".py"))
    if _given_text(shell, words, env) or _given_file(shell, words, env):
        return
    text = document(shell, node)
    is_shell = head_name in SHELLS and "--version" not in words
    is_fed = any(one.feeds for one in node.redirects)
    only_options = all(head(word).startswith("-") for word in words[1:])
    if not is_fed and not (head_name in (*SHELLS, "sbatch") and only_options):
        text = None  # it is given something else to run, and leaves what it could read
    if text is not None and (is_shell or head_name in ("sbatch", "srun", "ssh")):
        rest: list[Value] = words[words.index("-s") :] if "-s" in words else ["bash"]
        child(shell, text, environment(shell, words, env), words, rest, header=True)
    elif is_shell and ((shell.piped and len(words) == 1) or is_fed):
        raise shell.refuse(f"{plain(node.source, 60)}: commands from a pipe or a file that is not known are not read")
    elif in_doubt(words[0]) and not bare(words[0]):
        shell.note(f"{plain(node.source, 80)} is a command that is not known")


def _given_text(shell: Shell, words: list[Value], env: dict[str, Value]) -> bool:
    """Reads the text of `bash -c TEXT`, or one that another program runs elsewhere."""
    for index, word in enumerate(words):
        flags = re.fullmatch(r"-([a-z]*)c", readable(words[index - 1])) if index > 1 else None
        is_flagged = flags is not None and any(base(one) in SHELLS for one in words[: index - 1])
        is_text = re.search(r"\s", bare(word)) is not None and mentions(bare(word))
        if is_flagged or (is_text and index and base(words[0]) in REMOTE):
            options = frozenset({"errexit"} if flags is not None and "e" in flags.group(1) else ())
            text = partition(word, "=")[2] if head(word).startswith("--wrap=") else word
            given = environment(shell, words[:index], env)
            child(shell, text, given, words[:index], words[index + 1 :], options=options)
            return True
    return False


def _given_file(shell: Shell, words: list[Value], env: dict[str, Value]) -> bool:
    """Reads a script that this one wrote or that stands beside it, or says that another one is not followed."""
    after_shell, submits, starts = False, base(words[0]) == "sbatch", base(words[0]) in STARTING
    for index, word in enumerate(words):
        is_option, is_named = head(word).startswith("-"), re.fullmatch(NAMED, bare(word)) is not None
        read = after_shell or (submits and index)  # a shell reads what it is given, whatever its ending
        if (index == 0 or read or (starts and is_named)) and not is_option:
            is_file = bool(read) or is_named or "/" in bare(word)
            text, place = text_of_file(shell, word, opens=is_file)
            given = environment(shell, words[:index], env)
            if text is not None:
                launcher = words[:index] or [word]
                child(shell, text, given, launcher, words[index:], header=True, place=place)
                return True
            if submits and os.path.basename(bare(word)) == RAY and mentions(bare(given.get("COMMAND", ""))):
                child(shell, given["COMMAND"], given, words[:index], words[index:], header=True)
                return True
            if is_named:
                shell.note(f"{plain(bare(word), 80)} is another script, which {LOST}")
                return True
        after_shell = base(word) in SHELLS or (after_shell and is_option)
    return False


def launched(shell: Shell, words: list[Value], entry: Entry, env: dict[str, Value], node: Simple) -> None:
    """Remembers one start of a training."""
    if len(shell.state.launches) >= 500:
        raise shell.refuse("more than 500 launches")
    arguments = words[entry.rest :]
    shell.spend(sum(map(size, arguments)) + len(arguments))
    origins = shell.origins[len(shell.origins) - len(arguments) :] if len(arguments) <= len(shell.origins) else ()
    comment = next((at for at, word in enumerate(arguments) if head(word).startswith(" #")), None)
    if comment is not None:
        lost = plain(readable(with_blanks(arguments[comment:])).strip(), 60)
        shell.note(
            f"{lost}: a backslash in front of a comment ends the command there; what the next lines hold is not passed"
        )
        arguments, origins = arguments[:comment], origins[:comment]
    given = {name: shell.given[name] for name in VARIABLES if name in shell.given}
    launcher = [*shell.outer, *words[: entry.at]]
    world = shell.variable("WORLD_SIZE")
    counted = env if world is None or isinstance(world, Array) else {"WORLD_SIZE": world, **env}
    number = gpus_of(launcher, entry.name, counted, shell.header)
    launch = Launch(entry.name, arguments, number.number, {**env, **given}, line=shell.line, source=node.source)
    launch.launcher, launch.gpus_unknown, launch.counted = launcher, number.unknown, counted
    launch.files, launch.header = dict(shell.state.files), dict(shell.header)
    launch.branch, launch.rounds, launch.origins = shell.branch, shell.rounds, origins
    shell.state.launches.append(launch)


def _writes(shell: Shell, name: str, words: list[Value], node: Simple) -> None:
    """Files that a script writes with a here-document are known when it starts them."""
    text = document(shell, node)
    if text is None:
        return
    into = [one for one in node.redirects if one.takes and one.operator != ">&"]
    if name == "cat" and len(words) == 1 and into:
        shell.stored.add(id(into[-1]))
        store(shell, shell.targets[id(into[-1])], text, appends=into[-1].operator == ">>")
    elif name == "tee" and len(words) > 1 and not head(words[-1]).startswith("-"):
        store(shell, words[-1], text, appends="-a" in words)


# -- shells of their own -------------------------------------------------------------------------------------------------
def environment(shell: Shell, words: list[Value], env: dict[str, Value]) -> dict[str, Value]:
    """The variables of a program: those exported, those in front of it, and those that `env`, mpirun and srun give it."""
    values = {name: shell.variable(name) for name in sorted(shell.state.exported)}
    exported = {name: value for name, value in values.items() if value is not None and not isinstance(value, Array)}
    exported.update(env)
    inside = False
    for index, word in enumerate(words):
        name, equals, value = partition(word, "=")
        before = words[index - 1]
        if base(word) == "env":
            inside = True
        elif inside and word in ("-i", "-"):
            exported = {}
        elif inside and before == "-u":
            exported.pop(bare(word), None)
        elif (inside or before in ("-x", "-e", "--env")) and equals and isinstance(name, str) and NAME.fullmatch(name):
            exported[name] = unquoted(value)
        elif name == "--export" and equals:
            while equals:  # --export=A=1,B=2
                one, equals, value = partition(value, ",")
                name, is_pair, given = partition(one, "=")
                if is_pair and isinstance(name, str):
                    exported[name] = unquoted(given)
        elif inside and not head(word).startswith("-"):
            inside = False
    return {name: shell.given.get(name, value) for name, value in exported.items()}


def child(
    shell: Shell,
    text: Value,
    env: dict[str, Value],
    launcher: list[Value],
    rest: list[Value],
    *,
    header: bool = False,
    options: frozenset[str] = frozenset(),
    place: str = "",
) -> None:
    """Reads a text that a program would give to a shell of its own, with a `header` of Slurm perhaps; `place` is its file."""
    before, launches = shell.state, len(shell.state.launches)
    functions = {name: body for name, body in before.functions.items() if name in before.exported_functions}
    own = {**gpus.header_options(bare(text)), **gpus.asked_for(shell.given)} if header else {}
    if launcher and base(launcher[0]) == "sbatch":
        own |= gpus.options(launcher[1:])
    of_job = {name: value for name, value in gpus.job_variables(own).items() if name not in shell.given} if own else {}
    env = {**env, **of_job}
    state = State(
        {**env}, {*env}, functions=functions, positionals=tuple(rest[1:]), files=dict(before.files), options=options,
        folder=before.folder, launches=list(before.launches), taken=before.taken, differed=before.differed,
    )  # fmt: skip
    shell.spend(10 * size(text))

    def inside() -> None:
        with named(shell, place):
            shell.run(shell, parsed(text if place else unquoted(text), 1 if place else line))

    line, places = shell.line, (place,) if place else ()
    outer, held = (*shell.outer, *launcher), {**shell.header, **own}
    with shell.during(state=state, line=line, loops=0, outer=outer, header=held, places=places):
        found = ends(shell, inside, in_subshell=False)
    for end in found:
        inner = end.state
        inner.launches[launches:] = [dataclasses.replace(one, line=line) for one in inner.launches[launches:]]
        inner.output, inner.opaque = before.output, before.opaque
        inner.status, inner.cause = before.status, before.cause
    outside(shell, found)


# -- what programs print ---------------------------------------------------------------------------------------------------
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def output_of(shell: Shell, name: str, words: list[Value], node: Simple) -> Value | None:
    """What a program prints, for those whose output follows from their words; None for all others."""
    is_fed = any(one.feeds for one in node.redirects)
    if name == "cat" and not words and sum(one.feeds for one in node.redirects) <= 1:
        return document(shell, node)
    words = present(words)
    texts = [bare(word) for word in words]
    if any(map(in_doubt, words)) or len(words) > 50:
        return None
    if name in FILTERS:
        text = document(shell, node)
        return FILTERS[name](texts, text) if isinstance(text, str) and text.isascii() else None
    if name == "bc":
        text = document(shell, node)
        return _summed(shell, _exact(text, division="/")) if isinstance(text, str) and not words else None
    if is_fed:
        return None
    if name.startswith("python") and len(texts) == 2 and os.path.basename(texts[0]) == PROGRAM:
        return _words_of_model(shell, *texts)
    if texts[:1] == ["--"] and name in ("basename", "dirname", "realpath", "readlink"):
        texts = texts[1:]
    if name in ("realpath", "readlink"):
        return _place(shell, texts if name == "realpath" else texts[1:] if texts[:1] in (["-f"], ["-e"]) else [])
    if name in ("basename", "dirname") and texts and texts[0].startswith("-"):
        raise shell.refuse(f"{name} with the option {texts[0]} is not read")  # it fails on one that it does not have
    if name in OF_WORDS:
        return OF_WORDS[name](texts)
    return _summed(shell, _expr(texts) if name == "expr" else plain_sum(name, texts))


def _words_of_model(shell: Shell, program: str, name: str) -> str:
    """The words of a model of miles; where its file may not be opened, an argument that names the model."""
    folder = os.path.join(*[os.path.dirname(program), *[os.pardir] * 3], FOLDER)
    variables = {one: value for one in shell.state.exported if isinstance(value := shell.variable(one), str)}

    def text_of(file: str) -> str | None:
        found = (
            shell.beside.read(os.path.normpath(os.path.join(folder, file)), shell.state.folder)
            if shell.beside
            else None
        )
        return found[1] if found else None

    return f"{words_of_model(name, text_of, {**variables, **shell.given}) or f'{OF_MODEL} {name}'}\n"


def _basename(texts: list[str]) -> str | None:
    if len(texts) not in (1, 2):
        return None
    base = texts[0].rstrip("/").split("/")[-1]
    suffix = texts[1] if len(texts) == 2 else ""
    return (base.removesuffix(suffix) if base != suffix else base) + "\n" if base else None


def _dirname(texts: list[str]) -> str | None:
    if len(texts) != 1 or not re.fullmatch(r"[^-/][^/]*(/[^/]+)*|(/[^/]+)+", texts[0]):
        return None
    head = texts[0].rsplit("/", 1)[0] if "/" in texts[0] else "."
    return (head or "/") + "\n"


def _summed(shell: Shell, expression: str | None) -> str | None:
    """The number that a sum of whole numbers is."""
    if expression is None:
        return None
    with suppress(ConfigError):
        return f"{evaluated(shell, expression)}\n"
    return None


def _place(shell: Shell, texts: list[str]) -> str | None:
    """The place of the script, of its folder, or of what stands below, links followed."""
    beside = shell.beside
    path = texts[0] if len(texts) == 1 else ""
    if beside is None or not path.startswith("/") or beside.resolved(path, None) is None:
        return None
    return os.path.realpath(path) + "\n"


def _seq(words: list[str]) -> str | None:
    if not 1 <= len(words) <= 3 or not all(_WHOLE.fullmatch(word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first, last = numbers[0] if len(numbers) > 1 else 1, numbers[-1]
    step = numbers[1] if len(numbers) > 2 else 1
    if not step or abs(last - first) // abs(step) > 5000:
        return None
    return "".join(f"{n}\n" for n in range(first, last + (1 if step > 0 else -1), step))


def _expr(words: list[str]) -> str | None:
    """The sum of `expr`: whole numbers with + - * / %."""
    is_sum = len(words) % 2 and all(map(_WHOLE.fullmatch, words[::2])) and {*words[1::2]} <= set("+-*/%")
    return " ".join(words) if is_sum and sum(map(len, words[::2])) <= MOST_DIGITS else None


# -- filters --------------------------------------------------------------------------------------------------------------
MOST_DIGITS = 18
"""Of all numbers of an expression together: their product fits 64 bits."""
CLASSES = {
    "[:lower:]": "abcdefghijklmnopqrstuvwxyz", "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "[:digit:]": "0123456789",
    "[:space:]": " \t\n\v\f\r",
    "[:blank:]": " \t",
}  # fmt: skip


def _tr(words: Sequence[str], text: str) -> str | None:
    if len(words) == 2 and words[0] == "-d":
        gone = _characters(words[1])
        return None if gone is None else "".join(c for c in text if c not in gone)
    if len(words) != 2 or words[0].startswith("-"):
        return None
    old, new = _characters(words[0]), _characters(words[1])
    if not old or not new:
        return None
    new += new[-1] * (len(old) - len(new))
    return text.translate({ord(a): b for a, b in reversed(list(zip(old, new, strict=False)))})


def _characters(text: str) -> str | None:
    """The characters of a set of `tr`; None for what is not read."""
    if text in CLASSES:
        return CLASSES[text]
    text = text.replace("\\n", "\n").replace("\\t", "\t")
    if "\\" in text or "[" in text:
        return None
    ranges = re.sub(r"([a-z])-([a-z])|([A-Z])-([A-Z])|([0-9])-([0-9])", _range, text)
    return None if re.search(r"(?<=.)-(?=.)", ranges) else ranges


def _range(match: re.Match[str]) -> str:
    first, last = (group for group in match.groups() if group)
    return "".join(map(chr, range(ord(first), ord(last) + 1)))


def _cut(words: Sequence[str], text: str) -> str | None:
    given = " ".join(words)
    match = re.fullmatch(r"-d ?(\S|)[ ]*-f ?([0-9]+)|-f ?([0-9]+) -d ?(\S|)", given.replace("-d  ", "-d "))
    if match is None:
        return None
    mark = match.group(1) or match.group(4) or " "
    field = int((match.group(2) or match.group(3))[:4])
    lines = [line.split(mark) for line in text.splitlines()]
    if field < 1:
        return None
    return "".join((parts[0] if len(parts) == 1 else "".join(parts[field - 1 : field])) + "\n" for parts in lines)


def _wc(words: Sequence[str], text: str) -> str | None:
    counts = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text)}
    return f"{counts[words[0]]}\n" if len(words) == 1 and words[0] in counts else None


def _ends(words: Sequence[str], text: str, *, at_end: bool) -> str | None:
    match = re.fullmatch(r"(?:-n ?)?-?([0-9]{1,6})|", " ".join(words))
    if match is None or (words and words[0][:1] != "-"):
        return None
    count = int(match.group(1) or 10)
    lines = text.splitlines(keepends=True)
    return "".join(lines[max(0, len(lines) - count) :] if at_end else lines[:count])


SUBSTITUTION = re.compile(r"s([/|,#:@])((?:[^\\\n]|\\.)*?)\1((?:[^\\&\n])*?)\1(g?)")
"""A command of `sed` that replaces a text; what it is replaced with has no parts of what was found."""
BASIC = re.compile(r"\\\+|\\[./,_-]|\[\^?[A-Za-z0-9 _,.:/=-]+\]|[A-Za-z0-9 _,:/=<>'\"%@#!;~-]|[.*^$]")
"""One sign of the regular expressions that are read: letters, classes, `.`, `*`, GNU's `\\+`, `^` and `$`."""


def _sed(words: Sequence[str], text: str) -> str | None:
    """`sed 's/A/B/g'` and such commands one after the other (-e), line by line. Source: POSIX.1-2017 XCU sed, XBD 9.3."""
    commands = [word for word in words if word != "-e"]
    for command in commands:
        match = SUBSTITUTION.fullmatch(command)
        pattern = _of_basic(match[2]) if match else None
        if match is None or pattern is None:
            return None
        lines = text.split("\n")
        kept = lines.pop() if text.endswith("\n") else ""
        replacement = match[3].replace("\\", "\\\\")
        lines = [pattern.sub(replacement, line, count=0 if match[4] else 1) for line in lines]
        text = "\n".join([*lines, kept] if text.endswith("\n") else lines)
    return text if commands and len(commands) == len(words) - words.count("-e") else None


def _of_basic(text: str) -> re.Pattern[str] | None:
    """A basic regular expression as Python's; None for what is not read, and for one that may match nothing."""
    signs = BASIC.findall(text)
    if "".join(signs) != text or not signs or "$" in signs[:-1] or "^" in signs[1:] or signs[0] in ("*", "\\+"):
        return None
    if any(one in ("*", "\\+") and before in ("*", "\\+", "^") for before, one in pairwise(signs)):
        return None
    written = (
        "+" if sign == "\\+" else sign if sign[0] in "[\\" or sign in ".*^$" else re.escape(sign) for sign in signs
    )
    found = re.compile("".join(written))
    return None if found.match("") else found


Filter = Callable[[Sequence[str], str], str | None]
FILTERS: dict[str, Filter] = {
    "tr": _tr,
    "cut": _cut,
    "wc": _wc,
    "sed": _sed,
    "head": partial(_ends, at_end=False),
    "tail": partial(_ends, at_end=True),
}
"""What a program makes of its words and of the text that it reads."""


def _getopt(words: list[str]) -> str | None:
    """`getopt -o LETTERS --long NAMES -n NAME -- WORDS`: the options in order, then --, then the other words, quoted for `eval`.

    None where an option is unknown or lacks its value, on which getopt fails, and for its rarer forms (util-linux 2.38
    `misc-utils/getopt.c`).
    """
    if "--" not in words:
        return None
    own, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    given = {"-o": "", "-l": "", "-n": ""}
    while own:
        name, equals, value = own.pop(0).partition("=")
        name = GETOPT.get(name, name)
        if name not in given or not (equals or own):
            return None
        value = value if equals else own.pop(0)
        given[name] += f",{value}" if name == "-l" and given[name] else value
    takes = {f"-{letter}": len(colons) for letter, colons in re.findall(r"([^:+-])(:{0,2})", given["-o"])}
    takes |= {f"--{long.rstrip(':')}": long.count(":") for long in re.split(r"[,\s]+", given["-l"]) if long}
    found = _sorted_out(rest, takes)
    return None if found is None else "".join(f" {word}" for word in (*found[0], "--", *map(_quoted, found[1]))) + "\n"


GETOPT = {"--options": "-o", "--long": "-l", "--longoptions": "-l", "--name": "-n"}
"""Long names of getopt's own options."""


def _sorted_out(words: list[str], takes: dict[str, int]) -> tuple[list[str], list[str]] | None:
    """Options with their values, quoted, and the other words; `takes` says how many colons an option has: a value, or one that may be
    left out."""
    options: list[str] = []
    others: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return options, others + left
        if not word.startswith("-") or word == "-":
            others.append(word)
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:] and "=", word[2:])
        full = [one for one in takes if one == name] or [
            one for one in takes if word[:2] == "--" and one.startswith(name)
        ]
        colons = takes[full[0]] if len(full) == 1 else -1
        if colons < 0 or (not colons and equals and word.startswith("--")) or (colons == 1 and not equals and not left):
            return None
        options.append(full[0])
        if colons:
            options.append(_quoted(value if equals else left.pop(0) if colons == 1 else ""))
        elif equals:  # letters in one word
            left.insert(0, f"-{value}")
    return options, others


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


OF_WORDS = {"seq": _seq, "basename": _basename, "dirname": _dirname, "getopt": _getopt}
"""What a program makes of its words."""


def plain_sum(name: str, words: Sequence[str]) -> str | None:
    """The expression of whole numbers that `python -c 'print(...)'` and `awk 'BEGIN {print ...}'` print, in the shell's own signs;
    None for anything else, and for what is not exact."""
    if name.startswith("python") and len(words) == 2 and words[0] == "-c":
        match = re.fullmatch(r"\s*print\s*\((?:\s*int\s*\((.*)\)\s*|(.*))\)\s*;?\s*", words[1], re.DOTALL)
        return _exact(match.group(1) or match.group(2), division="//") if match else None
    if name in ("awk", "gawk", "mawk") and len(words) == 1:
        match = re.fullmatch(r"\s*BEGIN\s*\{\s*print\s+([^;}]*?)\s*;?\s*\}\s*", words[0])
        return _exact(match.group(1), division="") if match else None
    return None


def _exact(text: str, *, division: str) -> str | None:
    """An expression that cannot overflow, whose quotients are rounded alike everywhere."""
    text = text.strip()
    if len(text) > 200 or not re.fullmatch(r"[0-9+\-*/() ]+", text) or re.search(r"\*\*|\+\+|--|(?<!\d)0\d", text):
        return None
    if sum(map(str.isdigit, text)) > MOST_DIGITS or ("/" in text and "-" in text):
        return None
    return text.replace("//", "/") if {*re.findall("/+", text)} <= {division} else None
