"""A plan whose result is pending: the requests of its rows, and the sampling that was left open.

A row that follows a token in flight is built without its sampling. Once that token is known, `complete` decides what
the row does: it samples; it samples nothing, because forced text follows or the request is over; or it is void, because
the request has to compute the token in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ..protocol.errors import RequestError
from .plan import ForwardPlan, Row, RowSampling, SamplingPlan
from .request import Request


class InFlightPlan:
    """One plan, and the request of each of its rows."""

    def __init__(self, plan: ForwardPlan, requests: Sequence[Request]) -> None:
        self.plan = plan
        self._index = {request: index for index, request in enumerate(requests)}
        self._rows: list[Row | None] = list(plan.rows)
        for request, row in zip(requests, plan.rows, strict=True):
            request.num_in_flight += row.num_committed
            request.token_in_flight |= row.sample is not None

    def __contains__(self, request: Request) -> bool:
        return request in self._index

    @property
    def rows(self) -> list[tuple[Request, Row | None]]:
        """Requests and their rows, with sampling where it is known; None for a void row."""
        return list(zip(self._index, self._rows, strict=True))

    def row_index(self, request: Request) -> int:
        """Index of the request's row in the plan."""
        return self._index[request]

    def complete(
        self, build: Callable[[Request], RowSampling], fail: Callable[[Request, RequestError], None]
    ) -> SamplingPlan:
        """Fill in the open sampling, after the previous plan was committed. `fail` is called for requests that cannot
        continue."""
        samplings: list[RowSampling | None] = []
        for request, index in self._index.items():
            row = self.plan.rows[index]
            if row.follows is None:
                continue
            end = row.first_position + 1
            sampling = None
            if request.leaving:
                self._rows[index] = None
            elif request.next_scored is not None and request.next_scored <= end:
                self._rows[index] = None  # forced tokens are scored, and this row returns no scores
                request.num_in_flight -= 1
            elif request.awaits_mask:
                self._rows[index] = None  # its last token is computed when the mask is there
                request.num_in_flight -= 1
            elif len(request.tokens) == end:
                try:
                    sampling = build(request)
                except RequestError as error:
                    self._rows[index] = None
                    fail(request, error)
                else:
                    self._rows[index] = replace(row, sample=sampling.sample, mask=sampling.mask)
                    request.token_in_flight = True
            samplings.append(sampling)
        return SamplingPlan(self.plan.step, samplings)
