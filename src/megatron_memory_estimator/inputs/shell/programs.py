"""Programs that a script would start: the training script itself, and shells that are given a text or a file."""

from __future__ import annotations

import re

from ...wording import plain
from ..environment import VARIABLES
from .doubts import bare, in_doubt, readable, unquoted
from .files import changed, document, known, store
from .grammar import Simple
from .launcher import gpus_of, sbatch_gpus
from .outputs import output_of
from .parameters import variable
from .parser import parsed
from .state import Launch, Shell, State

ENTRY = re.compile(r"(?:.*/)?(?:pretrain|train|finetune|run)\w*\.py|(?:.*/)?\w*(?:pretrain|train)\w*\.py")
SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
REMOTE = frozenset(
    ["srun", "sbatch", "salloc", "ssh", "pdsh", "clush", "docker", "podman", "kubectl", "singularity", "apptainer", "enroot", "su",
     "sudo", "tmux", "screen", "mpirun", "mpiexec", "timeout", "ray", "parallel-ssh", "xargs"]
)  # fmt: skip
"""Programs that may run a text as a command."""
QUIET = frozenset(
    [
        "cp", "mv", "ls", "cat", "vim", "vi", "nano", "less", "more", "head", "tail", "rm", "touch", "chmod", "chown",
        "grep", "egrep", "rg", "sed", "awk", "test", "git", "wget", "curl", "tee", "ln", "mkdir", "tar", "rsync",
        "scp", "which", "find", "diff", "pkill", "pgrep", "killall", "dos2unix", "wc", "sha256sum", "md5sum", "pip",
        "pip3", "sort", "uniq", "scancel", "squeue", "ps", "stat", "basename", "dirname", "realpath", "readlink",
        "seq", "expr", "tr", "cut", "date", "hostname", "sleep", "du", "df", "black", "ruff", "pytest", "zip",
        "unzip", "mypy", "flake8", "pylint", "isort", "autopep8", "yapf", "shellcheck", "logger", "mail",
        "notify-send",
    ]
)  # fmt: skip
"""Programs that do not start their arguments."""
NOT_TRAINING = re.compile(
    r"server|generat|inference|(?:^|_)infer(?:_|\.)|eval|convert|hf2m|m?core2hf|preprocess|prepare_data|export|theoretical|quantize|"
    r"benchmark_dataset|download|tokenize"
)
"""In names of programs that serve, evaluate, convert or prepare, and do not train."""


def program(shell: Shell, words: list[str], env: dict[str, str], node: Simple) -> None:
    """A command that is no function and no builtin."""
    while words and words[0].split("/")[-1] in ("nohup", "time", "command", "setsid"):
        words = words[1:]
    shell.state.status = None
    if not words:
        return
    name = words[0].split("/")[-1]
    if shell.output is not None:
        text = output_of(shell, name, words[1:], node)
        if text is None:
            shell.opaque = True
        else:
            shell.output.append(text)
            shell.state.status = None if name == "expr" else 0
    _writes(shell, name, words, node)
    changed(shell, name, words[1:])
    if name not in QUIET:
        _starts(shell, words, env, node)


def _starts(shell: Shell, words: list[str], env: dict[str, str], node: Simple) -> None:
    """Records a launch, or reads the text or the file that is given to a shell."""
    head = words[0].split("/")[-1]
    entry = _entry(words)
    if entry is not None:
        script = bare(words[entry]).split("/")[-1]
        if head == "xargs":
            raise shell.refuse("xargs starts a training script with words that are not known")
        if NOT_TRAINING.search(script) is None:
            launched(
                shell, words[:entry], bare(words[entry]), words[entry + 1 :], environment(shell, words[:entry], env)
            )
        else:
            shell.others[script] = None
        return
    if _given_text(shell, words, env, node) or _given_file(shell, words, env, node):
        return
    text = document(shell, node)
    if text is not None and head in SHELLS | {"sbatch", "srun", "ssh"}:
        rest = words[words.index("-s") :] if "-s" in words else ["bash"]
        child(shell, text, environment(shell, words, env), words, rest, header=True)
    elif head in SHELLS and (shell.piped or any(one.feeds for one in node.redirects)) and "--version" not in words:
        raise shell.refuse(f"{plain(readable(node.source), 60)}: commands from a pipe or a file are not read")
    elif in_doubt(words[0]) and not bare(words[0]):
        shell.note(f"{plain(readable(node.source), 80)} is a command that is not known")


def _entry(words: list[str]) -> int | None:
    """The place of the training script among the words, or None."""
    at = next((i for i, word in enumerate(words) if not word.startswith("-") and ENTRY.fullmatch(bare(word))), None)
    if at is None or re.fullmatch(r"(?:.*/)?python[0-9.]*", words[0]) is None:
        return at
    for index, word in enumerate(words[1:at], 1):  # python starts one script; what follows are its words
        if word == "-c":
            return None
        if word == "-m":
            return (
                at
                if re.search(r"torch\.distributed|deepspeed|resiliency|accelerate|torchrun", words[index + 1])
                else None
            )
        if word.endswith(".py") and not words[index - 1].startswith("-"):
            return None
    return at


def _given_text(shell: Shell, words: list[str], env: dict[str, str], node: Simple) -> bool:
    """Reads the text of `bash -c TEXT`, or one that another program runs elsewhere."""
    for index, word in enumerate(words):
        flags = re.fullmatch(r"-([a-z]*)c", words[index - 1]) if index > 1 else None
        is_flagged = flags is not None and any(one.split("/")[-1] in SHELLS for one in words[: index - 1])
        is_text = (
            re.search(r"\s", word) is not None
            and re.search(r"(?:pretrain|train|finetune|run)\w*\.py", word) is not None
        )
        if is_flagged or (is_text and index and words[0].split("/")[-1] in REMOTE):
            options = frozenset({"errexit"} if flags is not None and "e" in flags.group(1) else ())
            text = word.partition("=")[2] if word.startswith("--wrap=") else word
            child(
                shell, text, environment(shell, words[:index], env), words[:index], words[index + 1 :], options=options
            )
            return True
    return False


def _given_file(shell: Shell, words: list[str], env: dict[str, str], node: Simple) -> bool:
    """Reads a script that this one wrote, or says that another one is not followed."""
    after_shell = False
    for index, word in enumerate(words):
        head = word.split("/")[-1]
        if index == 0 or after_shell or words[0].split("/")[-1] == "sbatch":
            text = known(shell, word)
            if text is not None and not word.startswith("-"):
                launcher = words[:index] or [word]
                child(shell, text, environment(shell, words[:index], env), launcher, words[index:], header=True)
                return True
            if re.fullmatch(r"[^\s-]\S*\.(?:sh|bash|sbatch|slurm)", bare(word)):
                shell.note(f"{plain(bare(word), 80)} is another script, which is not followed")
                return True
        after_shell = head in SHELLS or (after_shell and word.startswith("-"))
    return False


def environment(shell: Shell, words: list[str], env: dict[str, str]) -> dict[str, str]:
    """The variables of a program: those exported, those in front of it, and those that `env`, mpirun and srun give it."""
    values = {name: variable(shell, name) for name in sorted(shell.state.exported)}
    exported = {name: value for name, value in values.items() if isinstance(value, str)} | env
    for name in shell.state.unsure & exported.keys() - env.keys():
        exported[name] = shell.doubt(f"whether {name} is exported is not known", name)
    inside = False
    for index, word in enumerate(words):
        if word.split("/")[-1] == "env":
            inside = True
        elif inside and word in ("-i", "-"):
            exported = {}
        elif inside and words[index - 1] == "-u":
            exported.pop(word, None)
        elif (inside or words[index - 1] in ("-x", "-e", "--env")) and (
            match := re.match(r"([A-Za-z_]\w*)=", word)
        ) is not None:
            exported[match.group(1)] = unquoted(word[match.end() :])
        elif word.startswith("--export="):
            pairs = [pair.partition("=") for pair in word.removeprefix("--export=").split(",")]
            exported.update({name: unquoted(value) for name, equals, value in pairs if equals})
        elif inside and not word.startswith("-"):
            inside = False
    return {name: shell.given.get(name, value) for name, value in exported.items()}


def launched(shell: Shell, launcher: list[str], entry: str, arguments: list[str], env: dict[str, str]) -> None:
    """Remembers one start of a training script."""
    if len(shell.launches) >= 500:
        raise shell.refuse("more than 500 launches")
    shell.spend(sum(map(len, arguments)) + len(arguments))
    given = {name: shell.given[name] for name in VARIABLES if name in shell.given}
    found = Launch(
        entry, arguments, gpus_of(launcher, inner=None), {**env, **given}, line=shell.line, branch=shell.branch
    )
    world = found.env.get("WORLD_SIZE", variable(shell, "WORLD_SIZE"))
    found.world = world if isinstance(world, str) else ""
    shell.launches.append(found)


def child(
    shell: Shell,
    text: str,
    env: dict[str, str],
    launcher: list[str],
    rest: list[str],
    *,
    header: bool = False,
    options: frozenset[str] = frozenset(),
) -> None:
    """Reads a text that a program would give to a shell of its own: that one sees its environment only."""
    from .commands import run
    from .control import Break, Return, Stop

    functions = {name: body for name, body in shell.state.functions.items() if name in shell.exported_functions}
    before, line, loops, output = shell.state, shell.line, shell.loops, shell.output
    launches = len(shell.launches)
    shell.state = State(
        {**env}, {*env}, functions=functions, positionals=tuple(rest[1:]), files=dict(before.files), options=options
    )
    shell.loops, shell.output = 0, None
    shell.depth += 1
    shell.spend(10 * len(text))
    try:
        if shell.depth > 20:
            raise shell.refuse("shells are nested too deeply")
        run(shell, parsed(unquoted(text), shell.line))
    except (Stop, Return, Break):
        pass
    finally:
        shell.state, shell.line, shell.loops, shell.output = before, line, loops, output
        shell.depth -= 1
    from_header = sbatch_gpus(text) if header else None
    for launch in shell.launches[launches:]:
        launch.line = line
        if launch.num_gpus is None or (launcher and launcher[0].split("/")[-1] in ("srun", "mpirun")):
            launch.num_gpus = gpus_of(launcher, inner=launch.num_gpus) or launch.num_gpus
        launch.num_gpus = launch.num_gpus or from_header


def _writes(shell: Shell, name: str, words: list[str], node: Simple) -> None:
    """Files that a script writes with a here-document are known when it starts them."""
    text = document(shell, node)
    if text is None:
        return
    into = [one for one in node.redirects if one.takes and one.operator != ">&"]
    if name == "cat" and len(words) == 1 and into:
        shell.stored.add(id(into[-1]))
        store(shell, shell.targets[id(into[-1])], text, appends=into[-1].operator == ">>")
    elif name == "tee" and len(words) > 1 and not words[-1].startswith("-"):
        store(shell, words[-1], text, appends="-a" in words)
