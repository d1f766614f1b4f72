"""Numbers as text, at the sizes where a unit changes."""

import pytest

from worldsize import units


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (2.8e12, "2.80 TB"),
        (80 * units.GB, "80.0 GB"),
        (-3.5e6, "-3.50 MB"),
        (9_999, "10.0 kB"),
        (999_499, "999 kB"),
        (999_999, "1.00 MB"),
        (-999_999, "-1.00 MB"),
        (999_999_999_999_999, "1.00 PB"),
    ],
)
def test_bytes_count_in_powers_of_a_thousand(size_bytes, text):
    assert units.format_bytes(size_bytes) == text


def test_a_noun_has_an_s_unless_it_is_one():
    assert [units.number_of(count, "rank") for count in (0, 1, 4)] == ["0 ranks", "1 rank", "4 ranks"]


def test_bytes_in_powers_of_1024():
    assert units.format_bytes(4 * units.MIB, binary=True) == "4.00 MiB"
    assert units.format_bytes(units.MIB - 1, binary=True) == "1.00 MiB"


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0, "0 s"),
        (3e-10, "0.300 ns"),
        (12.5e-3, "12.5 ms"),
        (1.0, "1.00 s"),
        (0.9999, "1.00 s"),
        (59.96, "60.0 s"),
        (59.999, "1.00 min"),
        (90, "1.50 min"),
        (34 * units.DAY, "34.0 days"),
        (1.009615e9, "32.0 years"),
    ],
)
def test_time_takes_the_unit_that_fits(time_s, text):
    assert units.format_time_s(time_s) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (7, "7"),
        (1500, "1.50K"),
        (1.5e9, "1.50B"),
        (7e9, "7B"),
        (175e9, "175B"),
        (999_950, "1M"),
        (9.999e14, "1.00e15"),
        (3.15e23, "3.15e23"),
    ],
)
def test_counts_as_model_sizes_are_written(count, text):
    assert units.format_count(count) == text


@pytest.mark.parametrize(("count", "text"), [(999_950, "1M"), (9.999e14, "1.00e15"), (999_499, "999K")])
def test_a_count_is_rounded_before_its_letter_is_chosen(count, text):
    assert units.format_count(count) == text


def test_significant_digits():
    assert [units.significant(x) for x in (0.012345, 1.5, 9.999, -99.96, 12345.6)] == [
        "0.0123",
        "1.50",
        "10.0",
        "-100",
        "12,300",
    ]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("size_bytes", 65_536, "64 KiB"),
        ("size_bytes", 64_000, "64 kB"),
        ("size_bytes", 4 * units.MIB, "4 MiB"),
        ("size_bytes", 11_400_000 * units.KIB, "11.7 GB"),
        ("size_bytes", 1500, "1.5 kB"),
        ("size_bytes", 999_999, "1 MB"),
        ("step_time_s", 0.0032, "3.2 ms"),
        ("time_s", 0, "0 s"),
        ("bubble_fraction", 1 / 3, "33.3%"),
        ("bandwidth_bytes_per_s", 25e9, "25 GB/s"),
        ("peak_flops_per_s", 312e12, "312T flops/s"),
        ("num_ranks", 4096, "4,096"),
        ("num_parameters", 7_500_000_000, "7.5B"),
        ("learning_rate", 1e-4, "0.0001"),
        ("learning_rate", 10.0, "10"),
        ("anything", float("inf"), "inf"),
    ],
)
def test_a_number_gets_the_unit_that_its_name_ends_in(name, value, text):
    assert units.format_as(name, value) == text


@pytest.mark.parametrize(
    ("typed", "unit", "value"),
    [
        ("1,024", "ms", 1024), ("1,5", "", 1.5), ("0,500", "", 0.5), ("12,34", "", 12.34), ("1.024", "", 1.024),
        ("1,024.5", "", 1024.5), ("1 000 000", "", 1e6),
        ("1\N{NARROW NO-BREAK SPACE}024", "", 1024), ("1.5e3", "", 1500),
        ("\N{MINUS SIGN}3", "", -3), ("-1,000", "", -1000), ("+1,000", "", 1000), ("+5", "", 5), (".5", "", 0.5),
        ("12 ms", "ms", 12), ("12ms", "ms", 12), ("12 MS", "ms", 12), (" 50 % ", "%", 50), ("50%", "", 50),
        ("50 GB/s", "GB/s", 50), ("50 gB/s", "GB/s", 50), ("50 mB", "MB", 50), ("5 KB", "kB", 5), ("5 mIB", "MiB", 5),
        ("400 gb/S", "Gb/s", 400), ("20 us", "µs", 20), ("20 \N{GREEK SMALL LETTER MU}s", "µs", 20),
        ("3 mWh", "mWh", 3), ("3 MWH", "MWh", 3), ("3 gwh", "GWh", 3), ("8 RANKS", "ranks", 8),
    ],
)  # fmt: skip
def test_typed_numbers_are_read_with_or_without_their_unit(typed, unit, value):
    assert units.parse_number(typed, unit) == value


@pytest.mark.parametrize(
    ("typed", "unit", "reason"),
    [
        ("50 Gb/s", "GB/s", "not a number in GB/s: b is a bit, B a byte"),
        ("50 gb", "GB", "not a number in GB: b is a bit, B a byte"), ("8 Mb", "MB", "not a number in MB: b is a bit"),
        ("8 mib", "MiB", "not a number in MiB: b is a bit"), ("8 MB/s", "Mb/s", "not a number in Mb/s: b is a bit"),
        ("3 mWh", "MWh", "not a number in MWh$"), ("3 kWh", "MWh", "not a number in MWh$"),
        ("5%", "ms", "not a number in ms$"),
        *[(typed, "", "not a number$") for typed in ["", "twelve", "nan", "inf", "1e400", "1_000", "1,2,3", "1.000,5"]],
        *[(typed, "", "not a number$") for typed in ["5 %%%", "5 %%", "0x10", "~5", "%", "True", "5 s"]],
        ("5 %%%", "%", "not a number in %$"), ("GB", "GB", "not a number in GB$"), ("5 m", "s", "not a number in s$"),
    ],
)  # fmt: skip
def test_what_is_not_a_number_in_the_unit_is_refused(typed, unit, reason):
    with pytest.raises(ValueError, match=f"^{reason}"):
        units.parse_number(typed, unit)


def test_ranks_and_amounts_that_are_none_have_words():
    assert units.format_ranks([]) == "no ranks"
    assert units.format_ranks([0, 2, 3, 4, 8]) == "ranks 0, 2 to 4 and 8"
    assert units.format_ranks(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 others"
    assert [units.format_time_s(float(value)) for value in ("nan", "inf", "-inf")] == ["nan s", "inf s", "-inf s"]
    assert [units.format_bytes(float(value)) for value in ("nan", "inf")] == ["nan B", "inf B"]
