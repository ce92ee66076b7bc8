"""Programs that a script would start: the training itself, and shells that are given a text or a file.

A shell that a script starts sees its environment only.
"""

from __future__ import annotations

import dataclasses
import re

from ...wording import plain
from ..environment import VARIABLES
from . import gpus
from .gpus import gpus_of
from .grammar import Simple
from .input_output import changed, document, known, named, opened, store
from .launches import Entry, Launch, entry_of, mentions
from .outputs import output_of
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
            child(
                shell, text, environment(shell, words[:index], env), words[:index], words[index + 1 :], options=options
            )
            return True
    return False


def _given_file(shell: Shell, words: list[Value], env: dict[str, Value]) -> bool:
    """Reads a script that this one wrote or that stands beside it, or says that another one is not followed."""
    after_shell = False
    for index, word in enumerate(words):
        is_option = head(word).startswith("-")
        if (index == 0 or after_shell or base(words[0]) == "sbatch") and not is_option:
            text, place = known(shell, word), ""
            if text is None and not in_doubt(word) and re.search(r"/|\.(?:sh|bash|sbatch|slurm)$", bare(word)):
                found = opened(shell, bare(word))
                place, text = found if found is not None else ("", None)
            if text is not None:
                launcher = words[:index] or [word]
                given = environment(shell, words[:index], env)
                child(shell, text, given, launcher, words[index:], header=True, place=place)
                return True
            if re.fullmatch(r"[^\s-]\S*\.(?:sh|bash|sbatch|slurm)", bare(word)):
                shell.note(f"{plain(bare(word), 80)} is another script, which is not followed")
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
    shell.state.launches.append(
        Launch(
            entry.name,
            arguments,
            number.number,
            {**env, **given},
            line=shell.line,
            launcher=launcher,
            gpus_unknown=number.unknown,
            files=dict(shell.state.files),
            branch=shell.branch,
            rounds=shell.rounds,
            header=dict(shell.header),
            source=node.source,
            origins=origins,
            counted=counted,
        )
    )


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
            exported.update(_pairs(value))
        elif inside and not head(word).startswith("-"):
            inside = False
    return {name: shell.given.get(name, value) for name, value in exported.items()}


def _pairs(value: Value) -> dict[str, Value]:
    """The variables of srun's `--export=A=1,B=2`."""
    found: dict[str, Value] = {}
    comma = ","
    while comma:
        one, comma, value = partition(value, ",")
        name, equals, given = partition(one, "=")
        if equals and isinstance(name, str):
            found[name] = unquoted(given)
    return found


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
