"""A scrape as a mapping, read by prometheus_client's own parser."""

from __future__ import annotations

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that wear these labels."""
        wanted = set(labels.items())
        return sum(value for (own, worn), value in self.samples.items() if own == name and wanted <= worn)

    def since(self, before: Scrape) -> Difference:
        return Difference(before, self)


class Difference:
    """Difference of the counters between two scrapes."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self._before = before
        self._after = after

    def __call__(self, name: str, **labels: str) -> float:
        return self._after(name, **labels) - self._before(name, **labels)


def scrape(client: httpx.Client, **request: Any) -> Scrape:
    response = client.get("/metrics", **request)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=")
    return Scrape(response.text)
