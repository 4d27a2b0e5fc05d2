"""Dates of measurements as tables and logs write them."""

import re
from datetime import UTC, datetime

from steptime.core.errors import InputError, shorten

EARLIEST_S, LATEST_S = 631_152_000.0, 4_102_444_800.0  # the years 1990 to 2100
MILLISECONDS = 1000.0
_FORMS = (
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y",
    "%a %b %d %H:%M:%S %Y",
    "%a %b %d %H:%M:%S %Z %Y",
    "%a, %d %b %Y %H:%M:%S %z",
    "%b %d, %Y %I:%M %p",
    "%b %d, %Y %I:%M:%S %p",
    "%b %d, %Y %H:%M:%S",
    "%b %d, %Y",
    "%d %b %Y %H:%M:%S",
    "%d %b %Y",
)


def read_date(text: str) -> str:
    """Return a date as ISO 8601, in UTC if it has a time zone: "2024-03-01T09:00:00+00:00".

    Read are ISO dates, with `/` and blanks too, those of `date` and of mails, days as 1.3.2024,
    and seconds or milliseconds since 1970. A date without a zone stays without one.

    Raises:
        InputError: for another text.
    """
    text = text.strip()
    moment = _from_epoch(text) or _from_iso(text) or _from_forms(text)
    if moment is None:
        raise InputError(f"date: {shorten(text)} is no date such as 2024-03-01T10:00:00+01:00")
    if moment.tzinfo is not None:
        return moment.astimezone(UTC).isoformat(timespec="seconds")
    has_time = moment.time() != datetime.min.time() or ":" in text  # midnight may be written out
    return moment.isoformat(timespec="seconds") if has_time else moment.date().isoformat()


def _from_epoch(text: str) -> datetime | None:
    if not re.fullmatch(r"\d{9,13}(\.\d+)?", text):
        return None
    seconds = float(text)
    for scale in (1.0, MILLISECONDS):  # the one that gives a year between 1990 and 2100
        if EARLIEST_S <= seconds / scale <= LATEST_S:
            return datetime.fromtimestamp(seconds / scale, UTC)
    return None


def _from_iso(text: str) -> datetime | None:
    # `2024/03/01 10:00 +0100` and `2024-03-01 09:00 UTC` as Python reads them.
    dashed = re.sub(r"^(\d{4})/(\d\d)/(\d\d)", r"\1-\2-\3", text)
    with_zone = re.sub(r"(\d\d)\s*(?:UTC|GMT)$", r"\1Z", dashed)
    without_blank = re.sub(r"(\d\d:\d\d)\s+(Z|[-+]\d\d:?\d\d)$", r"\1\2", with_zone)
    try:
        return datetime.fromisoformat(without_blank)
    except ValueError:
        return None


def _from_forms(text: str) -> datetime | None:
    for form in _FORMS:
        try:
            return datetime.strptime(text, form)  # noqa: DTZ007  # a date may have no zone
        except ValueError:
            continue
    return None
