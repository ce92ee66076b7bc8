"""Programs that a script would start: the training itself, and shells that are given a text or a file."""

from __future__ import annotations

import re

from ...wording import plain
from ..environment import VARIABLES
from .children import child, environment
from .doubts import bare, in_doubt, readable
from .entries import Entry, entry_of, mentions
from .files import changed, document, known, opened, store
from .grammar import Simple
from .launcher import gpus_of
from .launches import Launch
from .outputs import output_of
from .parameters import variable
from .state import Shell

SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
REMOTE = frozenset(
    ["srun", "sbatch", "salloc", "ssh", "pdsh", "clush", "docker", "podman", "kubectl", "singularity", "apptainer", "enroot", "su",
     "sudo", "tmux", "screen", "mpirun", "mpiexec", "timeout", "ray", "parallel-ssh", "xargs", "bsub", "qsub", "script"]
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
        "notify-send", "bc",
    ]
)  # fmt: skip
"""Programs that do not start their arguments."""
DEAF = frozenset(
    {
        "mkdir",
        "sleep",
        "date",
        "torchrun",
        "python",
        "python3",
        "nvidia-smi",
        "rm",
        "chmod",
        "touch",
        "ls",
        "seq",
        "expr",
    }
)
"""Programs that leave standard input to the next one."""


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
    if words[0].startswith("--"):
        shell.note(
            f"{plain(readable(node.source), 60)} is not passed to the program above it: a comment or an empty line ends that command"
        )
    elif name not in QUIET:
        _starts(shell, words, env, node)
    changed(shell, name, words[1:])
    if shell.state.fed is not None and name not in DEAF and not any(one.feeds for one in node.redirects):
        shell.state.fed = "" if name in (*SHELLS, "cat", "tee") else None


def _starts(shell: Shell, words: list[str], env: dict[str, str], node: Simple) -> None:
    """Records a launch, or reads the text or the file that is given to a shell."""
    head = words[0].split("/")[-1]
    entry = entry_of(words, [*env, *shell.state.exported])
    if entry is not None:
        if head == "xargs":
            raise shell.refuse("xargs starts a training script with words that are not known")
        if entry.trains:
            launched(shell, words, entry, environment(shell, words[: entry.at], env))
        else:
            shell.others[entry.base] = None
        return
    if _given_text(shell, words, env) or _given_file(shell, words, env):
        return
    text = document(shell, node)
    is_shell = head in SHELLS and "--version" not in words
    is_fed = any(one.feeds for one in node.redirects)
    if not is_fed and not (head in (*SHELLS, "sbatch") and all(word.startswith("-") for word in words[1:])):
        text = None  # it is given something else to run, and leaves what it could read
    if text is not None and (is_shell or head in ("sbatch", "srun", "ssh")):
        rest = words[words.index("-s") :] if "-s" in words else ["bash"]
        child(shell, text, environment(shell, words, env), words, rest, header=True)
    elif is_shell and ((shell.piped and len(words) == 1) or is_fed):
        raise shell.refuse(
            f"{plain(readable(node.source), 60)}: commands from a pipe or a file that is not known are not read"
        )
    elif in_doubt(words[0]) and not bare(words[0]):
        shell.note(f"{plain(readable(node.source), 80)} is a command that is not known")


def _given_text(shell: Shell, words: list[str], env: dict[str, str]) -> bool:
    """Reads the text of `bash -c TEXT`, or one that another program runs elsewhere."""
    for index, word in enumerate(words):
        flags = re.fullmatch(r"-([a-z]*)c", words[index - 1]) if index > 1 else None
        is_flagged = flags is not None and any(one.split("/")[-1] in SHELLS for one in words[: index - 1])
        is_text = re.search(r"\s", word) is not None and mentions(word)
        if is_flagged or (is_text and index and words[0].split("/")[-1] in REMOTE):
            options = frozenset({"errexit"} if flags is not None and "e" in flags.group(1) else ())
            text = word.partition("=")[2] if word.startswith("--wrap=") else word
            child(
                shell, text, environment(shell, words[:index], env), words[:index], words[index + 1 :], options=options
            )
            return True
    return False


def _given_file(shell: Shell, words: list[str], env: dict[str, str]) -> bool:
    """Reads a script that this one wrote or that stands beside it, or says that another one is not followed."""
    after_shell = False
    for index, word in enumerate(words):
        head = word.split("/")[-1]
        if (index == 0 or after_shell or words[0].split("/")[-1] == "sbatch") and not word.startswith("-"):
            text, place = known(shell, word), ""
            if text is None and not in_doubt(word) and re.search(r"/|\.(?:sh|bash|sbatch|slurm)$", word):
                place, text = opened(shell, word) or ("", None)
            if text is not None:
                launcher = words[:index] or [word]
                given = environment(shell, words[:index], env)
                child(shell, text, given, launcher, words[index:], header=True, place=place)
                return True
            if re.fullmatch(r"[^\s-]\S*\.(?:sh|bash|sbatch|slurm)", bare(word)):
                shell.note(f"{plain(bare(word), 80)} is another script, which is not followed")
                return True
        after_shell = head in SHELLS or (after_shell and word.startswith("-"))
    return False


def launched(shell: Shell, words: list[str], entry: Entry, env: dict[str, str]) -> None:
    """Remembers one start of a training."""
    if len(shell.launches) >= 500:
        raise shell.refuse("more than 500 launches")
    arguments = words[entry.rest :]
    shell.spend(sum(map(len, arguments)) + len(arguments))
    comment = next((at for at, word in enumerate(arguments) if word.startswith(" #")), None)
    if comment is not None:
        lost = plain(readable(" ".join(arguments[comment:])).strip(), 60)
        shell.note(
            f"{lost}: a backslash in front of a comment ends the command there; what the next lines hold is not passed"
        )
        arguments = arguments[:comment]
    given = {name: shell.given[name] for name in VARIABLES if name in shell.given}
    launcher = [*shell.outer, *words[: entry.at]]
    world = variable(shell, "WORLD_SIZE")
    counted = {"WORLD_SIZE": world, **env} if isinstance(world, str) else env
    gpus = gpus_of(launcher, entry.name, counted, shell.header, shell.doubts)
    shell.launches.append(
        Launch(
            entry.name,
            arguments,
            gpus.number,
            {**env, **given},
            line=shell.line,
            launcher=launcher,
            gpus_unknown=gpus.unknown,
            files=dict(shell.state.files),
            branch=shell.branch,
            rounds=shell.rounds,
            header=dict(shell.header),
        )
    )


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
