"""Programs that a script would start: the training script itself, a shell with a text, and those whose output is plain."""

from __future__ import annotations

import re

from ...wording import plain, signed
from .doubts import MARK, bare, in_doubt, readable, unquoted, vanishes
from .expand import text_of, variable
from .grammar import Redirect, Simple
from .launcher import gpus_of, sbatch_gpus
from .parser import parsed
from .state import Launch, Shell, State

ENTRY = re.compile(r"(?:.*/)?(?:pretrain|train|finetune|run)\w*\.py|(?:.*/)?\w*(?:pretrain|train)\w*\.py")
SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
QUIET = frozenset(
    [
        "cp", "mv", "ls", "cat", "vim", "vi", "nano", "less", "more", "head", "tail", "rm", "touch", "chmod", "chown",
        "grep", "egrep", "rg", "sed", "awk", "test", "git", "wget", "curl", "tee", "ln", "mkdir", "tar", "rsync",
        "scp", "which", "find", "diff", "pkill", "pgrep", "killall", "dos2unix", "wc", "sha256sum", "md5sum", "pip",
        "pip3", "sort", "uniq", "xargs", "scancel", "squeue", "ps", "stat", "basename", "dirname", "realpath",
        "readlink", "seq", "expr", "tr", "cut", "date", "hostname", "sleep", "du", "df", "black", "ruff", "pytest",
        "zip", "unzip",
    ]
)  # fmt: skip
"""Programs that do not start their arguments."""
NOT_TRAINING = re.compile(
    r"server|generat|inference|(?:^|_)infer(?:_|\.)|eval|convert|hf2m|m?core2hf|preprocess|prepare_data|export|theoretical|quantize|"
    r"benchmark_dataset|download|tokenize"
)
"""In names of programs that serve, evaluate, convert or prepare, and do not train."""


def program(shell: Shell, words: list[str], env: dict[str, str], found: Simple) -> None:
    """A command that is no function and no builtin."""
    words = [word for word in words if not vanishes(word) or word is not words[0]]
    while (
        words
        and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]) is None
        and words[0].split("/")[-1] in ("env", "nohup", "time", "command")
    ):
        head = words.pop(0).split("/")[-1]
        while head == "env" and words and (match := re.match(r"([A-Za-z_]\w*)=", words[0])) is not None:
            env = {**env, match.group(1): unquoted(words.pop(0)[match.end() :])}
    if not words:
        shell.state.status = None
        return
    name = words[0].split("/")[-1]
    shell.state.status = None
    if shell.output is not None and (text := _output(shell, name, words[1:], found)) is not None:
        shell.output.append(text)
        shell.state.status = 0
        return
    _writes(shell, name, words, found)
    if name not in QUIET:
        _starts(shell, words, env, found)
    if shell.output is not None and not any(one.operator in (">", ">>", "&>") for one in found.redirects):
        from .commands import Unprintable

        raise Unprintable


def _starts(shell: Shell, words: list[str], env: dict[str, str], found: Simple) -> None:
    """Records a launch, or reads the text that is given to a shell."""
    entry = next((i for i, word in enumerate(words) if not word.startswith("-") and ENTRY.fullmatch(bare(word))), None)
    if entry is not None:
        if NOT_TRAINING.search(words[entry].split("/")[-1]) is None:
            arguments = [unquoted(word) if not bare(word) and word != "" else word for word in words[entry + 1 :]]
            launched(shell, words[:entry], bare(words[entry]), _kept(words[entry + 1 :], arguments), env)
        else:
            shell.others[words[entry].split("/")[-1]] = None
        return
    for index, word in enumerate(words):
        is_shell = index and words[index - 1].split("/")[-1] in SHELLS
        flagged = (
            index > 1
            and re.fullmatch(r"-[a-z]*c", words[index - 1])
            and any(one.split("/")[-1] in SHELLS for one in words[: index - 1])
        )
        is_text = (
            re.search(r"\s", word) is not None
            and re.search(r"(?:pretrain|train|finetune|run)\w*\.py", word) is not None
        )
        if flagged or (is_text and index):
            child(shell, word, env, words[:index], words[index + 1 :], found)
            return
        path = bare(word)
        if (is_shell or index == 0 or words[0].split("/")[-1] == "sbatch") and path in shell.state.files:
            child(shell, shell.state.files[path], env, words[:index], words[index:], found, header=True)
            return
        if (is_shell or index == 0) and re.fullmatch(r"[^\s-]\S*\.(?:sh|bash|sbatch|slurm)", path):
            shell.note(f"{plain(path, 80)} is another script, which is not followed")
            shell.scripts[path] = None
            return
    documents = [one for one in found.redirects if one.operator in ("<<", "<<<")]
    if words[0].split("/")[-1] in SHELLS | {"sbatch", "srun", "ssh"} and len(documents) == 1:
        child(shell, text_of(shell, documents[0].target), env, words, [], found, header=True)
    elif words[0].split("/")[-1] in SHELLS and (shell.piped or any(one.operator == "<" for one in found.redirects)):
        if not any(word in words for word in ("--version",)):
            raise shell.refuse(f"{plain(readable(found.source), 60)}: commands from a pipe or a file are not read")
    elif in_doubt(words[0]) and not bare(words[0]):
        shell.note(f"{plain(readable(found.source), 80)} is a command that is not known")


def _kept(words: list[str], arguments: list[str]) -> list[str]:
    """Arguments as they are passed; a quoted word of unset variables stays marked as such."""
    return [
        word if f'{MARK}"' in word and not bare(word) else argument
        for word, argument in zip(words, arguments, strict=True)
    ]


def launched(shell: Shell, launcher: list[str], entry: str, arguments: list[str], env: dict[str, str]) -> None:
    """Remembers one start of a training script."""
    if len(shell.launches) >= 500:
        raise shell.refuse("more than 500 launches")
    shell.spend(sum(map(len, arguments)) + len(arguments))
    values = {name: variable(shell, name) for name in sorted(shell.state.exported)}
    exported = {name: value for name, value in values.items() if isinstance(value, str)}
    found = Launch(
        entry, arguments, gpus_of(launcher, inner=None), {**exported, **env}, line=shell.line, branch=shell.branch
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
    found: Simple,
    *,
    header: bool = False,
) -> None:
    """Reads a text that a program would give to a shell of its own: that one sees exported variables only."""
    from .commands import Break, Return, Stop, run

    variables = {
        name: value
        for name, value in shell.state.variables.items()
        if name in shell.state.exported and isinstance(value, str)
    }
    before, locals_, line = shell.state, shell.locals, shell.line
    launches = len(shell.launches)
    shell.state = State({**variables, **env}, {*variables, *env}, positionals=tuple(rest[1:]), files=dict(before.files))
    shell.locals = []
    shell.depth += 1
    shell.spend(10 * len(text))
    try:
        if shell.depth > 20:
            raise shell.refuse("shells are nested too deeply")
        run(shell, parsed(unquoted(text), shell.line))
    except (Stop, Return, Break):
        pass
    finally:
        shell.state, shell.locals, shell.line = before, locals_, line
        shell.depth -= 1
    from_header = sbatch_gpus(text) if header else None
    for one in shell.launches[launches:]:
        one.line = line
        if one.num_gpus is None or (launcher and launcher[0].split("/")[-1] in ("srun", "mpirun")):
            one.num_gpus = gpus_of(launcher, inner=one.num_gpus) or one.num_gpus
        one.num_gpus = one.num_gpus or from_header


def _writes(shell: Shell, name: str, words: list[str], found: Simple) -> None:
    """Files that a script writes with a here-document are known when it starts them."""
    into = [one for one in found.redirects if one.operator in (">", ">>", ">|")]
    document = next((one for one in reversed(found.redirects) if one.operator in ("<<", "<<<")), None)
    target: Redirect | str | None = into[-1] if into and name == "cat" and len(words) == 1 else None
    path = text_of(shell, target.target) if isinstance(target, Redirect) else ""
    if name == "tee" and len(words) > 1 and not words[-1].startswith("-"):
        path = words[-1]
    if path and document is not None:
        text = text_of(shell, document.target)
        appends = (into and into[-1].operator == ">>") or "-a" in words
        text = shell.state.files.get(bare(path), "") + text if appends else text
        if len(text) > 2**18 or len(shell.state.files) > 100:
            raise shell.refuse("the files that it writes grow too large")
        shell.state.files[bare(path)] = text


def _output(shell: Shell, name: str, words: list[str], found: Simple) -> str | None:
    """What a program prints, for those whose output follows from their words; None for all others."""
    if any(one.operator not in ("<<", "<<<") and one.target.literal() != "/dev/null" for one in found.redirects):
        return None
    if any(one.operator == "<<" for one in found.redirects) and name == "cat" and not words:
        return text_of(shell, found.redirects[-1].target)
    words = [word for word in words if not vanishes(word)]
    if found.redirects or any(in_doubt(word) for word in words) or len(words) > 50:
        return None
    texts = [bare(word) for word in words]
    if name == "seq":
        return _seq(texts)
    if name == "expr":
        return _expr(texts)
    if name == "basename" and len(texts) in (1, 2) and not texts[0].startswith("-"):
        base = texts[0].rstrip("/").split("/")[-1]
        suffix = texts[1] if len(texts) == 2 else ""
        return (base.removesuffix(suffix) if base != suffix else base) + "\n" if base else None
    if name == "dirname" and len(texts) == 1 and re.fullmatch(r"[^-/][^/]*(/[^/]+)*|(/[^/]+)+", texts[0]):
        head = texts[0].rsplit("/", 1)[0] if "/" in texts[0] else "."
        return (head or "/") + "\n"
    return None


def _seq(words: list[str]) -> str | None:
    numbers = [signed(word) for word in words]
    if not 1 <= len(words) <= 3 or any(
        n is None or (len(w) > 1 and w.lstrip("-")[0] == "0") for n, w in zip(numbers, words, strict=True)
    ):
        return None
    values = [n for n in numbers if n is not None]
    first, step, last = (
        (1, 1, values[0]) if len(values) == 1 else (values[0], 1, values[1]) if len(values) == 2 else tuple(values)
    )
    if not step or abs(last - first) // abs(step) > 5000:
        return None
    return "".join(f"{n}\n" for n in range(first, last + (1 if step > 0 else -1), step))


def _expr(words: list[str]) -> str | None:
    """`expr` of whole numbers with + - * / %, from left to right by precedence."""
    if len(words) % 2 == 0 or not words:
        return None
    values, signs = [signed(word) for word in words[::2]], words[1::2]
    if any(value is None for value in values) or any(sign not in ("+", "-", "*", "/", "%") for sign in signs):
        return None
    terms = [values[0] or 0]
    for sign, value in zip(signs, values[1:], strict=True):
        number = value or 0
        if sign in ("+", "-"):
            terms.append(number if sign == "+" else -number)
            continue
        if sign in ("/", "%") and not number:
            return None
        left = terms[-1]
        quotient = abs(left) // abs(number) * (1 if (left < 0) == (number < 0) else -1) if number else 0
        terms[-1] = left * number if sign == "*" else quotient if sign == "/" else left - number * quotient
        if sign != "*" and len(terms) > 1:
            return None  # a sign that has been folded into the term would be divided too
        if abs(terms[-1]) > 2**62:
            return None
    return f"{sum(terms)}\n" if abs(sum(terms)) < 2**62 else None
