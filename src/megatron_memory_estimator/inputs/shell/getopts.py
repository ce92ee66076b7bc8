"""`getopts`: options among the caller's words. Source: the Bash Reference Manual 5.2, 4.1; POSIX.1-2017 XCU getopts."""

from __future__ import annotations

from ...wording import whole
from .doubts import bare, in_doubt, loose, present
from .grammar import Simple
from .scanner import NAME
from .state import Shell


def getopts(shell: Shell, words: list[str], node: Simple) -> None:
    """The next option into the variable, its value into OPTARG; status 1 where there is none left."""
    words = present(words)
    if len(words) < 2 or not NAME.fullmatch(words[1]) or in_doubt(words[0]):
        raise shell.refuse("getopts without the letters of options and a name is not read")
    letters, name = bare(words[0]), words[1]
    if len(words) == 2:
        shell.takes_words = True
    arguments = words[2:] or present(shell.state.positionals)
    held = shell.state.variables.get("OPTIND", "1")
    number = whole(held) if isinstance(held, str) else None
    if not number or any(map(loose, arguments[: number + 1])):
        raise shell.refuse("getopts over words that are not known is not read")
    before, at, inside = shell.state.options_at
    at = at if before == number else 0
    if at and arguments[number - 1 : number] != [inside]:
        raise shell.refuse("getopts that goes on inside a word that is another now is not read")
    if at == 0:
        word = arguments[number - 1] if number <= len(arguments) else ""
        if in_doubt(word):
            raise shell.refuse("getopts over words that are not known is not read")
        if not word.startswith("-") or word in ("-", "--"):
            _ends(shell, name, min(number, len(arguments) + 1) + (word == "--"))
            return
        at = 1
    _option(shell, letters, name, arguments, number, at)


def _ends(shell: Shell, name: str, number: int) -> None:
    shell.assign(name, "?")
    shell.forget("OPTARG")
    shell.assign("OPTIND", str(number))
    shell.state.options_at = (number, 0, "")
    shell.state.status = 1


def _option(shell: Shell, letters: str, name: str, arguments: list[str], number: int, at: int) -> None:
    """The option at a place inside a word."""
    word = arguments[number - 1]
    letter, is_last = word[at], at + 1 >= len(word)
    silent = letters.startswith(":")
    place = letters.find(letter, 1 if silent else 0) if letter != ":" else -1
    following, rest = (number + 1, 0) if is_last else (number, at + 1)
    found, value = letter, None
    if place < 0:
        found, value = "?", letter if silent else None
    elif letters[place + 1 : place + 2] == ":":
        following, rest = number + 1, 0
        if not is_last:
            value = word[at + 1 :]
        elif number < len(arguments):
            value, following = arguments[number], number + 2
        else:
            found, value = (":", letter) if silent else ("?", None)
    shell.assign(name, found)
    if value is None:
        shell.forget("OPTARG")
    else:
        shell.assign("OPTARG", value)
    shell.assign("OPTIND", str(following))
    shell.state.options_at = (following, rest, word)
    shell.state.status = 0
