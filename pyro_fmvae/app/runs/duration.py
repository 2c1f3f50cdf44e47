"""Lengths of time in words."""


def duration(seconds: float) -> str:
    """A length of time in words, by its two greatest units.

    >>> duration(0.2), duration(200), duration(40_000)
    ('less than a second', '3 min 20 s', '11 h 6 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = {"h": hours, "min": minutes} if hours else {"min": minutes, "s": rest}
    return " ".join(f"{number} {unit}" for unit, number in parts.items() if number) or "less than a second"
