"""Where things are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


PUBLISHED = ROOT / "data" / "published.csv"


RESULTS = ROOT / "data" / "results"


RECORDED = ROOT / "data" / "recorded"
