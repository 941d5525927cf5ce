"""How far a run of notebooks is: "notebook 3 of 12, about 4 min left"."""

from collections.abc import Mapping

MINUTE, HOUR = 60, 3600  # seconds


class Progress:
    """Notebooks one after the other, or several at a time.

    Args:
        seconds: by the name of each notebook, in order: those of an earlier run, None where there is none, 0 where
            there is nothing to do.
        jobs: notebooks at a time.
    """

    def __init__(self, seconds: Mapping[str, float | None], jobs: int = 1):
        self.expected, self.jobs = dict(seconds), jobs
        self.taken: dict[str, float] = {}

    def done(self, name: str, seconds: float) -> None:
        """A notebook has ended."""
        self.taken[name] = seconds

    def at(self, name: str) -> str:
        """Which one a notebook is, and the time that it and the others will take: "notebook 3 of 12, ..."."""
        return f"notebook {[*self.expected].index(name) + 1} of {len(self.expected)}{self._left()}"

    def ended(self) -> str:
        """How many have ended, and the time that the others will take: "3 of 12 notebooks are done, ..."."""
        left = self._left() if len(self.taken) < len(self.expected) else ""
        return f"{len(self.taken)} of {len(self.expected)} notebooks are done{left}"

    def left(self) -> float | None:
        """Seconds that those not done will take, as earlier runs did; one without takes what those did here that had
        something to do, on average. None where neither says anything."""
        here = [seconds for name, seconds in self.taken.items() if self.expected[name] != 0]
        mean = sum(here) / len(here) if here else None
        rest = [mean if x is None else x for name, x in self.expected.items() if name not in self.taken]
        return None if None in rest else sum(rest) / self.jobs

    def _left(self):
        seconds = self.left()
        return "" if seconds is None else f", {in_words(seconds)} left"


def in_words(seconds: float) -> str:
    """A time that is not known better: "about 4 min"."""
    if seconds < MINUTE:
        return "less than 1 min"
    if seconds < 2 * HOUR:
        return f"about {seconds / MINUTE:.0f} min"
    return f"about {seconds / HOUR:.1f} h"
