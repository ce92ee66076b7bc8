"""Microbatches of samples of different lengths, and sample lengths as data.

facts/microbatches.jsonl: lengths and the microbatches that the frameworks' own functions make of them: verl 0.9.0
(`verl/utils/seqlen_balancing.py`), slime and miles (`dp_schedule.py`, `data.py`), NeMo-RL (`nemo_rl/data/packing/algorithms.py`), AReaL
(`areal/utils/seqpack.py`), SkyRL (`skyrl/train/dataset/bin_packing.py`). NeMo-RL's and ROLL's dynamic batching and Megatron-Core's
`dp_balanced` follow their source. Rows with `one_rank` show the microbatches of the first data-parallel rank.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from math import isqrt
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError
from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.lengths.microbatches import (
    LINEAR_COST,
    MANY,
    RULES,
    Limits,
    Shards,
    longest,
    microbatches,
    of_ranks,
    padded,
    tokens,
    worst,
)  # fmt: skip
from megatron_memory_estimator.lengths.samples import LONGEST, MOST, Samples, chance_of_any, parse_samples, read_samples

from .helpers import FACTS

ROWS = [json.loads(line) for line in (FACTS / "microbatches.jsonl").read_text().splitlines()]
NAMED = {row["name"]: row["lengths"] for row in ROWS if "name" in row}
CASES = [row for row in ROWS if "rule" in row]
TAIL = NAMED["long tail"]
BOUND = Limits(16384)
KEEPS = [name for name in RULES if name not in ("verl", "slime_legacy")]


def multiset(bins: Any) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sorted(samples)) for samples in bins)


def test_the_facts_are_whole() -> None:
    assert len(CASES) == 35
    assert {row["rule"] for row in CASES} == {
        "verl", "slime", "miles", "slime_legacy", "nemo_rl", "nemo_rl_dynamic", "roll", "areal", "skyrl", "megatron_core",
    }  # fmt: skip


@pytest.mark.parametrize("row", CASES, ids=lambda row: row["rule"])
def test_microbatches_are_those_of_the_framework(row: dict[str, Any]) -> None:
    lengths = NAMED.get(row["lengths"], row["lengths"]) if isinstance(row["lengths"], str) else row["lengths"]
    limits = Limits(**row["limits"])
    if "tokens" in row:
        assert tokens(row["rule"], lengths, limits)[:: limits.dp] == tuple(row["tokens"])
        return
    made = multiset(microbatches(row["rule"], lengths, limits))
    told = multiset(row["microbatches"])
    if row["rule"] == "nemo_rl":
        assert (told & made).total() == told.total() - 1  # its third differs by one sample of 1,152 tokens
    elif "one_rank" in row:
        assert told <= made
        assert made.total() == limits.dp * told.total()
    else:
        assert made == told
    assert longest(row["rule"], lengths, limits) == max(map(sum, row["microbatches"]))


@pytest.mark.parametrize(
    ("lengths", "verl", "slime", "legacy", "grouped"),
    [
        ([14336] * 8, 28672, 14336, 14336, 14336),
        ([9216] * 16, 18432, 9216, 9216, 9216),
        ([6500] * 5, 19500, 13000, 13000, 32500),
        (TAIL, 15664, 16335, 15087, 18819),
    ],
)
def test_largest_microbatches_by_hand(lengths: list[int], verl: int, slime: int, legacy: int, grouped: int) -> None:
    assert longest("verl", lengths, BOUND) == verl
    assert longest("slime", lengths, BOUND) == slime
    assert longest("slime_legacy", lengths, BOUND) == legacy
    assert longest("slime_legacy", lengths, Limits(16384, group=4)) == grouped


def test_verl_keeps_its_bound_from_0_9_1() -> None:
    assert microbatches("verl_0_9_1", [9216] * 16, BOUND) == ((9216,),) * 16
    assert tokens("verl_0_9_1", [6500] * 5, BOUND) == (13000, 13000, 6500)
    assert tokens("verl", [6500] * 5, BOUND) == (19500, 13000)
    with pytest.raises(ConfigError, match=r"5 samples cannot make a multiple of 2 microbatches"):
        microbatches("verl_0_9_1", [9216] * 5, Limits(16384, group=2))


def test_every_rank_has_as_many_microbatches_as_the_one_that_needs_most() -> None:
    few, many = [6500] * 5, [9000] * 7
    verl = of_ranks("verl", (few, many), BOUND)
    assert [len(bins) for bins in verl] == [4, 4]
    assert sorted(map(sum, verl[0])) == [6500, 6500, 6500, 13000]
    assert [len(bins) for bins in of_ranks("slime_legacy", (few, [9000] * 5), Limits(16384, group=2))] == [4, 4]
    assert [len(bins) for bins in of_ranks("skyrl", (few, many), BOUND)] == [3, 7]
    areal = of_ranks("areal", (few, [16000] * 5), BOUND)
    assert [len(bins) for bins in areal] == [5, 5]


LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=60)


def made_or_refused(rule: str, lengths: list[int], limits: Limits) -> tuple[tuple[int, ...], ...] | None:
    try:
        return microbatches(rule, lengths, limits)
    except ConfigError:
        return None


LIMITS = st.builds(
    Limits,
    st.integers(4096, 20000),
    dp=st.integers(1, 3),
    group=st.integers(1, 4),
    pp=st.integers(1, 3),
    at_least=st.integers(1, 4),
)


@given(st.sampled_from(sorted(RULES)), LENGTHS, LIMITS)
def test_every_sample_is_in_one_microbatch(rule: str, lengths: list[int], limits: Limits) -> None:
    made = made_or_refused(rule, lengths, limits)
    if made is None:
        return
    assert all(made)
    if rule in ("nemo_rl_dynamic", "roll", "megatron_lm_sft"):
        assert sum(map(len, made)) == len(lengths)
        assert sum(map(sum, made)) >= sum(lengths)
    else:
        assert Counter(length for samples in made for length in samples) == Counter(lengths)
    if rule in KEEPS:
        assert max(map(sum, made)) <= limits.tokens == worst(rule, limits).ceiling
    if RULES[rule].of == "batch" and rule not in ("megatron_lm_sft", "ms_swift", "ms_swift_sequential"):
        assert len(made) % limits.dp == 0


@given(st.sampled_from(["slime", "miles", "slime_legacy", "skyrl", "megatron_core"]), LENGTHS, st.integers(1, 4096))
def test_a_longer_sample_stands_alone(rule: str, lengths: list[int], bound: int) -> None:
    made = microbatches(rule, lengths, Limits(bound))
    assert Counter(length for samples in made for length in samples) == Counter(lengths)
    if rule != "slime_legacy":
        assert all(len(samples) == 1 for samples in made if sum(samples) > bound)


@pytest.mark.parametrize("rule", [name for name, row in RULES.items() if row.longer == "refused"])
def test_a_longer_sample_is_refused_by_name(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"stops at a sample of 20000 tokens: its bound is 16384") as caught:
        microbatches(rule, [100, 20000], BOUND)
    assert RULES[rule].name in str(caught.value)


def test_a_longer_sample_is_cut_or_left_out() -> None:
    assert microbatches("megatron_lm_sft", [100, 20000], BOUND) == ((16384,), (16384,))
    assert microbatches("ms_swift", [100, 20000], BOUND) == ((100,),)
    assert microbatches("ms_swift", [20000], BOUND) == ()
    assert longest("ms_swift", [20000], BOUND) == 0


def test_ms_swift_packs_into_the_emptiest_or_in_order() -> None:
    lengths = [5000, 9000, 3000, 8000, 2000]
    assert multiset(microbatches("ms_swift", lengths, BOUND)) == multiset([[9000, 3000, 2000], [8000, 5000]])
    assert microbatches("ms_swift_sequential", lengths, BOUND) == ((5000, 9000), (3000, 8000, 2000))


def test_areal_by_differencing_keeps_its_bound() -> None:
    assert multiset(microbatches("areal_kk", TAIL, BOUND)) == multiset(microbatches("slime_legacy", TAIL, BOUND))
    assert longest("areal_kk", [9216] * 16, BOUND) == 9216


def mixed(bound: int, count: int) -> list[int]:
    """count - 1 samples that cost as much as all short ones together."""
    a = LINEAR_COST * count
    u = (isqrt(a**2 + 4 * LINEAR_COST * count * bound) - a) // 2
    short = bound // 512
    return [u] * (count - 1) + [short] * ((count * bound - (count - 1) * u) // short)


@pytest.mark.parametrize(
    ("bound", "count", "times"),
    [(16384, 2, 1.333), (16384, 7, 1.75), (65536, 3, 1.724), (65536, 7, 2.364), (131072, 10, 3.502)],
)
def test_verls_worst_is_attained(bound: int, count: int, times: float) -> None:
    limits = Limits(bound)
    attained, ceiling = worst("verl", limits, count)
    assert attained / bound == pytest.approx(times, abs=0.001)
    equal = [count * bound // (count + 1)] * (count + 1)
    found = max(longest("verl", lengths, limits) for lengths in (equal, mixed(bound, count)))
    assert attained * 0.99 <= found <= attained < ceiling


@given(st.integers(2, 5), st.integers(0, 2**32), st.sampled_from([64, 16384, 65536, 262144]))
def test_verl_is_never_above_its_ceiling(count: int, seed: int, bound: int) -> None:
    random = Random(seed)
    sizes = [random.randint(max(1, bound // 40), bound) for _ in range(3)]
    left = count * bound
    lengths: list[int] = []
    while fitting := [size for size in sizes if size <= left]:
        lengths.append(random.choice(fitting))
        left -= lengths[-1]
    made = tokens("verl", lengths, Limits(bound))
    attained, ceiling = worst("verl", Limits(bound), len(made))
    assert max(made) <= ceiling
    assert bound <= attained <= ceiling


@pytest.mark.parametrize("bound", [16384, 131072])
def test_verl_may_take_nearly_twice_its_bound_or_more(bound: int) -> None:
    attained = worst("verl", Limits(bound)).attained / bound
    assert attained == pytest.approx(max(2, 1 + bound / LINEAR_COST), rel=0.02)
    assert worst("verl_0_9_1", Limits(bound)) == (bound, bound)


def legacy_worst(m: int) -> list[int]:
    """Full microbatches of 3m, one after the other, which differencing does not find again."""
    pairs = [length for j in range(m + 1, 2 * m) for length in (j, 3 * m - j)]
    return [*pairs, m, m, m, 3 * m]


@pytest.mark.parametrize("m", [2, 3, 4, 7, 20])
def test_the_legacy_rule_may_be_nearly_a_third_above_its_bound(m: int) -> None:
    limits = Limits(3 * m)
    made = tokens("slime_legacy", legacy_worst(m), limits)
    assert len(made) == m + 1
    assert max(made) == worst("slime_legacy", limits, m + 1).attained
    assert worst("slime_legacy", limits, MANY).ceiling == 4 * m


def test_the_legacy_rule_with_two_microbatches_may_take_seven_sixths() -> None:
    assert tokens("slime_legacy", [3, 3, 2, 2, 2], Limits(6)) == (7, 5)
    assert worst("slime_legacy", Limits(6), 2) == (7, 7)
    assert worst("slime_legacy", Limits(6), 1) == (6, 6)


@pytest.mark.parametrize("group", [2, 3, 4, 8])
def test_the_legacy_rule_with_virtual_stages_may_take_multiples(group: int) -> None:
    limits = Limits(1000, group=group)
    found = max(longest("slime_legacy", [1000] * number, limits) for number in (group - 1, 2 * group - 1))
    assert found == worst("slime_legacy", limits).attained == max(2, group - 1) * 1000


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 6))
def test_the_legacy_rule_is_never_above_its_ceiling(lengths: list[int], group: int) -> None:
    limits = Limits(1000, group=group)
    made = tokens("slime_legacy", lengths, limits)
    assert max(made) <= worst("slime_legacy", limits, len(made)).ceiling
    if group == 1 and len(made) > 1:
        assert max(made) * 3 <= 4 * 1000


@pytest.mark.parametrize(
    ("rule", "shards", "expected"),
    [
        ("verl", Shards(tp=2), 1000 + 2002),
        ("verl", Shards(tp=2, cp=2), 1000 + 2008),
        ("verl", Shards(tp=4, fp8="blockwise"), 3072),
        ("slime", Shards(tp=2), 3072),
        ("slime", Shards(tp=2, cp=2), 3072),
        ("slime", Shards(tp=4, cp=2), 3072),
        ("areal", Shards(tp=2), 3072),
        ("skyrl", Shards(tp=2, cp=2), 1000 + 2008),
        ("skyrl", Shards(tp=2, fp8="mxfp8"), 1024 + 2048),
        ("skyrl", Shards(tp=1, fp8="blockwise"), 1008 + 2016),
        ("ms_swift", Shards(tp=2, cp=2), 3004),
        ("ms_swift", Shards(tp=2, fp8="blockwise"), 3072),
        ("megatron_core", Shards(tp=8, cp=8), 3001),
    ],
)
def test_padding_of_a_microbatch(rule: str, shards: Shards, expected: int) -> None:
    assert padded(rule, (1000, 2001), shards) == expected


def test_wrong_rules_limits_and_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="no rule of microbatches is called 'verll'; use verl, verl_0_9_1"):
        microbatches("verll", [1], BOUND)
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match="tokens of a bound of microbatches must be a whole number"):
            Limits(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="a sample's length must be a whole number"):
            microbatches("slime", [wrong], BOUND)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="3 samples cannot make a multiple of 4 microbatches"):
        microbatches("slime", [1, 2, 3], Limits(16384, dp=4))
    with pytest.raises(ConfigError, match="3 samples cannot be dealt equally to 2"):
        microbatches("roll", [1, 2, 3], Limits(16384, dp=2))
    assert microbatches("verl", [], BOUND) == () and longest("verl", [], BOUND) == 0


# Sample lengths as data.


@pytest.mark.parametrize(
    "text",
    [
        "100\n200\n200\n",
        "200 2\n100\n",
        "# lengths\n\n100 1\n200,2  # twice\n",
        "[100, 200, 200]",
        " \n[200,\n100, 200]\n",
    ],
)
def test_forms_of_sample_lengths(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    expected = Samples(((100, 1), (200, 2)))
    assert parse_samples(text, "lengths.txt") == read_samples(str(path)) == expected
    assert (expected.number, expected.longest, expected.mean) == (3, 200, 500 / 3)
    assert [expected.share_longer(length) for length in (99, 100, 199, 200)] == [1, 2 / 3, 2 / 3, 0]


def test_sample_lengths_from_a_command_line() -> None:
    assert read_samples("4096") == Samples(((4096, 1),))
    assert read_samples("4096 3\n8192") == Samples(((4096, 3), (8192, 1)))
    assert read_samples("[1, 2]") == Samples(((1, 1), (2, 1)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("100\nlong\n", "lengths, line 2: `long` is neither a length nor `length count` in whole numbers; read are a length a line"),
        ("100\n1e4", "lengths, line 2: `1e4` is neither"),
        ("-5", "lengths, line 1: `-5` is neither"),
        ("1 2 3", "lengths, line 1: `1 2 3` is neither"),
        ("0", "lengths, line 1: a length must be a whole number from 1 to 1000000000, not 0"),
        ("5 0", "lengths, line 1: a count must be from 1 to 1000000000000, not 0"),
        (f"{LONGEST + 1}", "a length must be a whole number from 1 to 1000000000, not 1000000001"),
        (f"5 {MOST}\n6", "lengths holds more than 1000000000000 samples"),
        ("9" * 5000, "lengths, line 1: `9999"),
        ("", "lengths holds no sample lengths; read are"),
        ("# nothing\n\n", "lengths holds no sample lengths"),
        ("[]", "lengths holds no sample lengths"),
        ("[100, 2.5]", "lengths, item 2: a length must be a whole number from 1 to 1000000000, not 2.5"),
        ("[true]", "lengths, item 1: a length must be a whole number from 1 to 1000000000, not True"),
        ('[100, "a"]', "lengths, item 2: a length must be a whole number"),
        ("[NaN]", "lengths, item 1: a length must be a whole number from 1 to 1000000000, not nan"),
        ("[100,\n", "lengths, line 2: not a JSON list of lengths"),
        ("[" * 100_000, "lengths: not a JSON list of lengths"),
        ("[" + "9" * 5000 + "]", "lengths: not a JSON list of lengths"),
    ],
)  # fmt: skip
def test_wrong_sample_lengths_are_refused_with_their_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_samples(text, "lengths")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no sample lengths are given; give a file or text with a length a line"),
        ("no-such-file.txt", "no such file: no-such-file.txt"),
        ("/dev/zero", "/dev/zero is not a regular file"),
        ("3000,2000,9000", "mean,p99,max must not fall: mean 3000, 99th percentile 2000, maximum 9000"),
        ("3000,9000,8000", "mean,p99,max must not fall"),
        ("0,1,2", "mean,p99,max must be whole numbers from 1 to 1000000000, not `0,1,2`"),
        ("1.5,2,3", "mean,p99,max must be whole numbers"),
        (f"1,2,{LONGEST + 1}", "mean,p99,max must be whole numbers"),
    ],
)
def test_wrong_words_for_sample_lengths_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_samples(text)
    assert message in str(caught.value)


def test_mean_p99_and_max_make_a_long_tail() -> None:
    found = read_samples("3000, 12000, 16384")
    assert (found.number, found.longest) == (100, 16384)
    assert found.share_longer(12000) == found.share_longer(16383) == 0.01
    assert found.mean == pytest.approx(3000, rel=0.03) and found.mean >= 3000
    assert read_samples("500,500,500").counts == ((500, 100),)


@given(st.lists(st.integers(1, LONGEST), min_size=3, max_size=3).map(sorted))
def test_mean_p99_and_max_never_make_shorter_samples_than_told(figures: list[int]) -> None:
    mean, p99, most = figures
    found = read_samples(",".join(map(str, figures)))
    assert found.number == 100 and found.longest == most and found.mean >= mean
    assert found.share_longer(most) == 0
    assert found.share_longer(p99) == (0.01 if most > p99 else 0)


@pytest.mark.parametrize(
    ("share", "batch", "step", "run"), [(0.0001, 256, 0.025, 27), (0.001, 256, 0.226, 3), (0.00001, 512, 0.005, 135)]
)
def test_chance_that_a_step_or_a_run_meets_a_longer_sample(share: float, batch: int, step: float, run: int) -> None:
    assert chance_of_any(share, batch) == pytest.approx(step, abs=0.0005)
    assert chance_of_any(share, batch * run) == pytest.approx(0.5, abs=0.04)
    samples = Samples(((1000, round(1 / share) - 1), (9000, 1)))
    assert samples.chance(8999, batch, run) == pytest.approx(chance_of_any(share, batch * run))
    assert samples.chance(9000, batch, run) == 0 and samples.chance(1, batch) == 1
    assert chance_of_any(1, 0) == 0 and chance_of_any(1e-12, 1) == pytest.approx(1e-12)


def test_drawn_batches_follow_the_counts() -> None:
    samples = Samples(((100, 9), (900, 1)))
    drawn = samples.draw(10_000, Random(1))
    assert drawn == samples.draw(10_000, Random(1))
    assert set(drawn) == {100, 900} and drawn.count(900) == pytest.approx(1000, rel=0.1)


@given(st.text(alphabet='0123456789,. []#\n-ea\t"x', max_size=40))
def test_any_text_ends_in_samples_or_a_refusal(text: str) -> None:
    for read in (read_samples, lambda text: parse_samples(text, "text")):
        found = read_or_refused(read, text)
        assert isinstance(found, str) or (found.number >= 1 and found.longest >= 1)


def read_or_refused(read: Callable[[str], Samples], text: str) -> Samples | str:
    try:
        return read(text)
    except EstimatorError as error:
        return str(error)
