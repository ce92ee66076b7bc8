"""One launch of those that the ways through a script start at the same place.

What all of them share is known. Where they differ, the launch holds an `Unknown` with what it may be, the conditions that decide it, and
the variable that --set could give: the one that decides a condition, or the one whose values were told apart there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TypeVar

from ...wording import any_of
from .gpus import gpus_of
from .launches import Launch
from .state import Fork, Shell, State
from .values import Unknown, Value, bare, head, joined, outside_in, partition, words_of

KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*")
"""Key of an override (`model.seq_length=4096`), which is no value of the option before it."""
MOST_COMPARED = 4000
"""Words in which the same ones are looked for; more are one difference."""
MOST_WHYS = 6
Words = tuple[Value, ...]


Place = tuple[object, ...]
T = TypeVar("T")


def starts(states: Sequence[State]) -> list[tuple[Place, dict[int, Launch]]]:
    """The places where trainings are started, each before those that follow it on a way, with the launch on each of the ways that
    come there."""
    ways = [_by_place(state.launches) for state in states]
    return [
        (place, {way: ones[place] for way, ones in enumerate(ways) if place in ones})
        for place in _in_order([list(ones) for ones in ways])
    ]


def _by_place(launches: Sequence[Launch]) -> dict[Place, Launch]:
    """Launches by what tells the places where they are started apart, and by how often a place was met."""
    found: dict[Place, Launch] = {}
    for one in launches:
        place = (one.line, one.entry, one.branch, one.loops)
        key = (*place, sum(other[:-1] == place for other in found))
        found[key] = one
    return found


def _in_order(lists: Sequence[Sequence[T]]) -> list[T]:
    """The items of all lists in one order: one that the lists before do not have stands before the next that they have."""
    found: list[T] = []
    for items in lists:
        for index, item in enumerate(items):
            if item not in found:
                following = next((found.index(one) for one in items[index + 1 :] if one in found), len(found))
                found.insert(following, item)
    return found


def together(shell: Shell, states: Sequence[State]) -> list[Launch]:
    """The launches of several ways, those at the same place as one."""
    if all(state.launches == states[0].launches for state in states):
        return list(states[0].launches)
    return [merged(shell, [states[way] for way in by_way], list(by_way.values())) for _, by_way in starts(states)]


def merged(shell: Shell, states: Sequence[State], launches: Sequence[Launch]) -> Launch:
    """The launch that is, on each of the ways to `states`, the one of `launches` at the same place."""
    first = launches[0]
    if all(launch == first for launch in launches):
        return first
    ways = _Ways(shell, states, first.source)
    found = dataclasses.replace(
        first,
        words=_words(ways, launches),
        launcher=ways.aligned([tuple(one.launcher) for one in launches]),
        env=ways.mapping([one.env for one in launches]),
        files=ways.mapping([one.files for one in launches], named=False),
        header=ways.mapping([one.header for one in launches]),
        counted=ways.mapping([one.counted for one in launches]),
    )
    if any((one.num_gpus, one.gpus_unknown) != (first.num_gpus, first.gpus_unknown) for one in launches):
        gpus = gpus_of(found.launcher, found.entry, found.counted, found.header)
        differ = ways.explained([(str(one.num_gpus),) for one in launches])
        option = f"--set {differ.option}=VALUE or " if differ.option else ""
        found.num_gpus = None
        found.gpus_unknown = gpus.unknown or f"the number of GPUs is not known: {differ.why}; give {option}--num-gpus N"
    return found


def _words(ways: _Ways, launches: Sequence[Launch]) -> list[Value]:
    """The words of a launch, compared by the words of the command that they are made from, where it is the same command."""
    first = launches[0]
    by_origin = all(one.source == first.source and len(one.origins) == len(one.words) for one in launches)
    if not by_origin:
        return ways.aligned([tuple(one.words) for one in launches])
    found: list[Value] = []
    for origin in sorted({at for one in launches for at in one.origins}):
        ways.source = origin[1]
        found += ways.aligned(
            [tuple(word for word, at in zip(one.words, one.origins, strict=True) if at == origin) for one in launches]
        )
    ways.source = first.source
    return found


class _Ways:
    """The ways on which something is compared, one value each, in their order."""

    def __init__(self, shell: Shell, states: Sequence[State], source: str) -> None:
        self.shell, self.states, self.spend = shell, states, shell.spend
        self.source = self.command = source
        taken = [dict(state.taken) for state in states]
        self.forks = list(dict.fromkeys(fork for one in taken for fork in one))
        self.taken = taken

    # -- where they differ ---------------------------------------------------------------------------------------------
    def aligned(self, lists: Sequence[Words]) -> list[Value]:
        """Words that are the same on all ways, and unknown ones where they differ; an argument stays beside its values."""
        if all(one == lists[0] for one in lists):
            return list(lists[0])
        found: list[Value] = []
        for gap in _gaps(self.spend, [_arguments(one) for one in lists]):
            found += gap[0][0] if len(gap) == 1 else self._difference(gap)
        return found

    def _difference(self, gap: Sequence[list[Words]]) -> list[Value]:
        """The words at a place where the ways differ, by argument where they are passed in one order."""
        if all(len(arguments) == 1 for arguments in gap):
            return self._argument([arguments[0] for arguments in gap])
        keys = _order([[_key(one) for one in arguments] for arguments in gap])
        if not keys:
            return [(self.explained([tuple(word for one in arguments for word in one) for arguments in gap]),)]
        found: list[Value] = []
        for key in keys:
            found += self._argument([next((one for one in arguments if _key(one) == key), ()) for arguments in gap])
        return found

    def _argument(self, ones: list[Words]) -> list[Value]:
        """One argument, which may be missing on some ways: its values where its name is the same."""
        first = ones[0]
        if all(one == first for one in ones):
            return list(first)
        if first and _is_flag(first[0]) and all(len(one) == len(first) and one[0] == first[0] for one in ones):
            found: list[Value] = [first[0]]
            for at in range(1, len(first)):
                found += self._argument([(one[at],) for one in ones])
            return found
        if all(len(one) == 1 for one in ones):
            key, equals, _ = partition(first[0], "=")
            values = [partition(one[0], "=") for one in ones]
            if equals and all(value[:2] == (key, equals) for value in values):
                return [joined((key, equals, (self.explained([(value[2],) for value in values]),)))]
        return [(self.explained(ones),)]

    def mapping(self, ones: Sequence[Mapping[str, Value]], *, named: bool = True) -> dict[str, Value]:
        """Values by name (variables, options, files), each of which may be missing on some ways. `named`: --set gives them."""
        found: dict[str, Value] = {}
        for name in dict.fromkeys(name for one in ones for name in one):
            values = [one.get(name) for one in ones]
            if any(value != values[0] for value in values):
                differ = self.explained([() if value is None else (value,) for value in values])
                found[name] = (dataclasses.replace(differ, name=differ.name or (name if named else "")),)
            else:
                found[name] = ones[0][name]
        return found

    # -- why -----------------------------------------------------------------------------------------------------------
    def explained(self, gap: Sequence[Words]) -> Unknown:
        """What differs, with what it may be, why, and the variable that gives it."""
        forks = self.deciding(gap)
        whys = [fork.why for fork in forks]
        more = f" and {len(whys) - MOST_WHYS} more" if len(whys) > MOST_WHYS else ""
        causes = {fork.cause for fork in forks}
        name = self._named(gap)
        cause = causes.pop() if len(causes) == 1 else "" if name else next(iter(sorted(causes - {""})), "")
        values = tuple(self.shell.weighed.get(cause, ()))[:MOST_WHYS]
        compared = f"; the script compares {cause} with {any_of(values)}" if values else ""
        why = f"it depends on {' and '.join(whys[:MOST_WHYS])}{more}{compared}"
        return Unknown("outside", name, why, tuple(dict.fromkeys(gap)), cause, values)

    def deciding(self, gap: Sequence[object]) -> list[Fork]:
        """The fewest forks that tell apart what differs."""
        forks = list(self.forks)
        for fork in reversed(self.forks):
            rest = [one for one in forks if one != fork]
            if rest and self._decide(rest, gap):
                forks = rest
        return forks

    def _decide(self, forks: list[Fork], gap: Sequence[object]) -> bool:
        """Whether ways that differ are told apart by some forks; one that is not met on a way goes with all of its ways."""
        self.spend(len(gap) * len(gap))
        for at, one in enumerate(self.taken):
            for after in range(at):
                other = self.taken[after]
                if gap[at] != gap[after] and not any(
                    fork in one and fork in other and one[fork] != other[fork] for fork in forks
                ):
                    return False
        return True

    def _named(self, gap: Sequence[Words]) -> str:
        """The variable whose values behind the forks are what differs."""
        names = [name for name in self.states[0].differed if all(name in state.differed for state in self.states)]
        found = [
            name
            for name in names
            if all(words_of(one.differed[name]) == words for one, words in zip(self.states, gap, strict=True))
        ]
        written = [name for name in names if re.search(rf"\$\{{?{name}\b", self.source)]
        if found:
            found = [name for name in found if name in written] or found
        elif self.source != self.command:  # one word of the command
            found = written
        return found[0] if len(found) == 1 else ""


def deciding(shell: Shell, states: Sequence[State], values: Sequence[object]) -> str:
    """The conditions that tell apart the ways on which something differs."""
    return " and ".join(fork.why for fork in _Ways(shell, states, "").deciding(values)[:MOST_WHYS]) or "a condition"


def _is_flag(word: Value) -> bool:
    return head(word).startswith("--")


def _arguments(words: Words) -> list[Words]:
    """Words by argument: a flag with what stands behind it; an override and any other word by itself."""
    found: list[list[Value]] = []
    has_flag = False
    for word in words:
        if _key((word,)) or not has_flag:
            found.append([word])
            has_flag = _is_flag(word) and "=" not in bare(word)
        else:
            found[-1].append(word)
    return [tuple(one) for one in found]


def _key(argument: Words) -> str:
    """What names an argument: its flag, the key of an override, or why it is not known; nothing for other words."""
    name, equals, _ = partition(argument[0], "=")
    if not isinstance(name, str):
        may_be_flags = any(_is_flag(one) for part in outside_in(name) for words in part.choices for one in words)
        return outside_in(name)[0].why if may_be_flags and not bare(name) else ""
    return name if _is_flag(name) or (equals and KEY.fullmatch(name)) else ""


def _order(lists: Sequence[list[str]]) -> list[str]:
    """Names in one order that all lists keep; none where there is no such order, or a name twice, or none."""
    if any("" in names or len(set(names)) < len(names) for names in lists):
        return []
    found = _in_order(lists)
    return found if all([one for one in found if one in names] == names for names in lists) else []


def _gaps(spend: Callable[[int], None], lists: Sequence[list[Words]]) -> list[Sequence[list[Words]]]:
    """What stands in all lists in the same order, as one list, and between it what stands there in each of them."""
    shared = list(lists[0])
    spend(sum(map(len, lists)))
    for other in lists[1:]:
        if len(shared) + len(other) > MOST_COMPARED:
            shared = []
            break
        spend(20 * (len(shared) + len(other)))
        blocks = SequenceMatcher(None, shared, other, autojunk=False).get_matching_blocks()
        shared = [one for block in blocks for one in shared[block.a : block.a + block.size]]
    found: list[Sequence[list[Words]]] = []
    starts = [0] * len(lists)
    for one in [*shared, None]:
        pairs = list(zip(lists, starts, strict=True))
        ends = [len(items) if one is None else items.index(one, start) for items, start in pairs]
        gap = [items[start:end] for (items, start), end in zip(pairs, ends, strict=True)]
        if any(gap):
            found.append(gap)
        if one is not None:
            found.append([[one]])
        starts = [end + 1 for end in ends]
    return found
