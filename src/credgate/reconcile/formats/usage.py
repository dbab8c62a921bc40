"""OpenAI and Anthropic: usage in buckets of time. Neither has records of single calls."""

from collections.abc import Iterator

from credgate.reconcile.model import Event, Unreadable, number, raw, text
from credgate.reconcile.times import moment

_COMPLETIONS = "organization.usage.completions.result"
_ANTHROPIC_TOKENS = ("uncached_input_tokens", "cache_read_input_tokens", "output_tokens")


def openai(record: object) -> tuple[Event, ...]:
    """A bucket of `/organization/usage/*`: `num_model_requests` by key, model and what else it is grouped by."""
    start, end = moment(raw(record, "start_time")), moment(raw(record, "end_time"))
    events = []
    for result in _results(record):
        if text(result, "object") not in ("", _COMPLETIONS):
            continue  # embeddings, images and the like: another page of the same API
        if raw(result, "num_model_requests") is None:
            raise Unreadable("no num_model_requests")
        count = number(result, "num_model_requests")
        events.append(_bucket(start, end, result, count, text(result, "object")))
    return tuple(events)


def anthropic(record: object) -> tuple[Event, ...]:
    """A bucket of `/organizations/usage_report/messages`: tokens alone, so that a call shows, and not how many did."""
    start, end = moment(raw(record, "starting_at")), moment(raw(record, "ending_at"))
    events = []
    for result in _results(record):
        tokens = sum(number(result, name) for name in _ANTHROPIC_TOKENS)
        created = raw(result, "cache_creation")
        tokens += sum(number(created, str(name)) for name in created) if isinstance(created, dict) else 0
        events.append(_bucket(start, end, result, int(tokens > 0), "tokens"))
    return tuple(events)


def _results(record: object) -> Iterator[object]:
    results = raw(record, "results")
    if results is None:
        results = raw(record, "result")  # as early versions spelt it
    if not isinstance(results, list):
        raise Unreadable("no results")
    yield from results


def _bucket(start: int, end: int, result: object, count: int, what: str) -> Event:
    if end <= start:
        raise Unreadable("bucket ends before it starts")
    return Event(
        t=start,
        t_end=end,
        kind="bucket",
        service="usage",
        action=text(result, "model") or "all models",
        cred=text(result, "api_key_id"),
        category=what,
        n=count,
    )
