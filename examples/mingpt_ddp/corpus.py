"""The text that both trainers learn: counting, in words. It is generated, so nothing has to be downloaded."""

from __future__ import annotations

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def words(number: int) -> str:
    if number < 10:
        return ONES[number]
    if number < 20:
        return TEENS[number - 10]
    tens, ones = divmod(number, 10)
    return TENS[tens - 2] + (f"-{ONES[ones]}" if ones else "")


def text() -> str:
    return "".join(f"{words(n)} and one is {words(n + 1)}.\n" for n in range(99))


def shard(rank: int, size: int) -> str:
    """This rank's part: every `size`-th line."""
    return "".join(text().splitlines(keepends=True)[rank::size])
