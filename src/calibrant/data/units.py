"""Numbers with a unit in text columns: 12 kg, 35%, 1.5 km, € 12, 3 rooms."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

from calibrant.data.columns import NEARLY, are_codes

_SIGN = "[€$£¥%‰]|EUR|USD|GBP|CHF"
_SIGNED = re.compile(rf"\s*([+-]?)\s*(?:({_SIGN})\s*)?([+-]?\d[\d.,]*|[.]\d+)\s*({_SIGN})?\s*")
_LETTER = "[A-Za-zµΩÄÖÜäöüß]"
_WORD = rf"(?:°{_LETTER}*|{_LETTER}+)[23²³]?"
_MEASURED = re.compile(
    r"\s*([+-]?(?:\d+(?:[.,]\d+)?|\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?|\.\d+))"
    rf"(\s*)({_WORD}(?:/(?:100\s?)?{_WORD})?|/{_WORD})\.?\s*"
)
_UNITS = """
kg g mg µg ug ng pg t lb oz gram kilogram ton tonne pound ounce Gramm Kilogramm Tonne
km m dm cm mm µm um nm mi yd ft in inch foot mile meter metre Meter kilometer Kilometer
ha qm sqm sqft acre l dl cl ml µl hl cc gal fl liter litre Liter
s ms µs ns sec second min minute h hr hour d day week month y yr year Sekunde Minute Stunde Tag Woche Monat Jahr
° °C °F C F K V mV kV A mA W mW kW MW GW Wh kWh MWh GWh J kJ MJ cal kcal Hz kHz MHz GHz Ω Ohm hp PS
Pa hPa kPa MPa bar mbar psi atm mmHg N kN Nm mol mmol µmol nmol IU IE ppm ppb
bit byte kB KB MB GB TB Mbps mph rpm bpm dB px Stück Euro
"""
_KNOWN = frozenset(_UNITS.split())
_ATTACHED = frozenset("gmlhstVW°")
"""Units of one letter that may follow a number without a space; codes such as 12A and 12B are no quantities."""
_SAME = {
    "inches": "inch",
    "feet": "foot",
    "L": "l",
    "mL": "ml",
    "Jahre": "Jahr",
    "Jahren": "Jahr",
    "Tage": "Tag",
    "Tagen": "Tag",
    "Wochen": "Woche",
    "Monate": "Monat",
    "Monaten": "Monat",
    "Stunden": "Stunde",
    "Std": "Stunde",
    "Minuten": "Minute",
    "Sekunden": "Sekunde",
    "Stk": "Stück",
}
"""Other spellings of known units."""


def split_unit(text: Any) -> tuple[str, str] | None:
    """The number and the unit of a text; the unit is empty for a number alone. None for other values.

    The unit of "2 years" is "year", as that of "1 year", and the unit of "5 KG" is "kg". Words that are not known as
    units need a space before them and lower case (3 rooms), so that 12B and "10115 Berlin" have no unit.
    """
    return _split(text) if isinstance(text, str) else None


def without_unit(column: Any, known: str | None = None) -> tuple[Any, str] | None:
    """A text column without its unit, and the unit.

    None if the values have no unit, or several, if more than 5 % are not numbers, or if the numbers look like codes.
    If the unit is ``known``, only it is removed, and the other values may be anything.
    """
    parts = {v: split_unit(v) for v in set(column) if isinstance(v, str)}
    units = {unit for _, unit in filter(None, parts.values()) if unit}
    if known is None:
        texts = [v for v in column if isinstance(v, str)]
        if len(units) != 1 or sum(parts[v] is not None for v in texts) < NEARLY * len(texts):
            return None
        (known,) = units
        if not _is_sign(known):
            own = {v for v, found in parts.items() if found is not None and found[1] == known}
            numbers = {found[0] for found in parts.values() if found is not None}
            codes = are_codes(numbers) or (not is_known(known) and _one_length(numbers))
            if codes or 2 * sum(v in own for v in texts) < len(texts):
                return None
    elif known not in units:
        return None
    plain = {v: found[0] for v, found in parts.items() if found is not None and found[1] in (known, "")}
    return column.map(lambda v: plain.get(v, v)), known


def check_unit(name: str, column: Iterable[Any], known: str, file: str) -> None:
    """Raise an error if a value of a new file has another unit than the column of the training table."""
    for value in column:
        found = split_unit(value)
        if found is not None and found[1] not in (known, ""):
            raise ValueError(
                f"Column {name!r} of {file} must have the unit of the training table, {known!r}; got {value!r}. "
                "Convert it, or leave it empty."
            )


def several_units(values: Collection[str]) -> list[str]:
    """The units of numbers with several known ones, such as kg and g; empty for other values."""
    found = [split_unit(value) for value in values]
    units = sorted({unit for _, unit in filter(None, found) if unit})
    read = sum(each is not None for each in found)
    sure = all(_is_sign(unit) or (is_known(unit) and not (len(unit) == 1 and unit.isupper())) for unit in units)
    return units if len(units) > 1 and read >= NEARLY * len(found) and sure else []


def is_known(unit: str) -> bool:
    """Whether all parts of a unit such as kg/m² are known."""
    parts = [part.removeprefix("100").strip().rstrip("23²³") for part in unit.split("/") if part]
    return bool(parts) and all(part in _KNOWN for part in parts)


@lru_cache(maxsize=1 << 16)
def _split(text: str) -> tuple[str, str] | None:
    if found := _SIGNED.fullmatch(text):
        sign, before, number, after = found.groups()
        if (before and after) or (sign and number[0] in "+-"):
            return None
        return sign + number, before or after or ""
    if (found := _MEASURED.fullmatch(text.replace("μ", "µ"))) is None:
        return None
    number, space, unit = found.groups()
    unit = _canonical(unit)
    if is_known(unit):
        return (number, unit) if space or len(unit) > 1 or unit in _ATTACHED else None
    return (number, unit) if space and len(unit) > 2 and unit.isalpha() and unit.islower() else None


def _canonical(unit: str) -> str:
    """One spelling for units that differ in number or case: years, KG."""
    unit = _SAME.get(unit, unit)
    if is_known(unit):
        return unit
    for other in (unit.removesuffix("s"), unit.lower(), unit.lower().removesuffix("s")):
        if len(unit) > 1 and is_known(other) and len(other) > 1:
            return other
    return unit.removesuffix("s") if len(unit) > 3 and not unit.endswith("ss") else unit


def _is_sign(unit: str) -> bool:
    return re.fullmatch(_SIGN, unit) is not None


def _one_length(numbers: Collection[str]) -> bool:
    """Whether all numbers are whole and have the same number of digits, at least four, like codes."""
    lengths = {len(number) if number.isdigit() else 0 for number in numbers}
    return len(lengths) == 1 and min(lengths) >= 4
