"""Chooses which of an engine's waiting requests are next."""

import collections

from eagle_jax.requests.ticket import Ticket
from eagle_jax.scheduling.scheduler import Scheduler


def admit(
    waiting: collections.deque[Ticket], scheduler: Scheduler
) -> tuple[dict[int, Ticket], list[tuple[Ticket, Exception]]]:
    """Gives the scheduler as many requests as it has free rows for, first come, first served; requests that wait for
    programs to compile are overtaken.

    Returns:
        The tickets that were begun, by the scheduler's id, and the tickets that failed, with the error.
    """
    begun: dict[int, Ticket] = {}
    failed: list[tuple[Ticket, Exception]] = []
    for ticket in list(waiting):
        if scheduler.num_free_rows <= 0:
            break
        try:
            if not scheduler.is_ready(ticket.request):
                continue
        except Exception as error:  # the other requests have nothing to do with it
            failed.append((ticket, error))
        else:
            begun[scheduler.submit(ticket.request)] = ticket
            ticket.begin()
        waiting.remove(ticket)
    return begun, failed
