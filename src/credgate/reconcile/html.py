"""The report as one HTML file: no script, nothing loaded, every text of a log's escaped, fit for print."""

from collections.abc import Mapping
from html import escape

from credgate.reconcile import proof
from credgate.reconcile.classes import CHECKED, MEANINGS, Class, Severity, severity
from credgate.reconcile.markup import document, facts, section, table
from credgate.reconcile.result import Part, Result
from credgate.reconcile.rows import Ours, Row, Theirs, findings, timelines, worst_words
from credgate.reconcile.store import Store
from credgate.reconcile.svg import TONES, chart
from credgate.reconcile.times import show

SHOWN = 200  # findings of a class on the page; all are in report.json and records.csv
SHOWN_OF_GAPS = 10  # a gap is said as a whole above
_LABELS = {Severity.FINE: "fine", Severity.WARNING: "warning", Severity.FAIL: "fail", Severity.CRITICAL: "critical"}


def page(store: Store, result: Result, summary: Mapping[str, object]) -> str:
    """The whole page."""
    body = "".join(
        (
            _head(result),
            _counts(result),
            _of_sources(result),
            _timelines(store, result),
            _findings(store, result),
            _shared(result),
            _sources(result),
            _ledger(result),
            _parameters(result),
            _meanings(),
        )
    )
    about = (
        f"{escape(str(summary['tool']))}, report form {summary['schema']}. "
        "All records with their classes: records.csv; all findings: report.json; what runs share: runs.html."
    )
    return document(f"Reconciliation: {_LABELS[result.severity]}", body, about)


def _head(result: Result) -> str:
    line = escape(proof.words(result.seen.report))
    if proof.signature(result.seen.report) is proof.Signature.NONE:
        first = f'<p class="alert">{line}. What follows is of unproven records.</p>'
    else:
        first = f'<p class="proof">{line}</p>'
    tone = _LABELS[result.severity]
    totals = _totals(result)
    bad = [(name, count) for name, count in totals.items() if severity(name)]
    said = ", ".join(f"{count} {name}" for name, count in bad) or "no findings"
    share = _percent(result.checkable, result.allowed)
    return (
        f'{first}<h1>Ledger against the targets&rsquo; own records</h1><p class="soft">{_when(result)}</p>'
        f'<section class="verdict {tone}"><p>{escape(worst_words(result.severity))}</p><p>{escape(said)}.</p>'
        f"<p><strong>{result.checkable} of {result.allowed}</strong> requests ({share}) could be checked against a "
        f"record of their target{_not_checked(result)}.</p>{_bar(result)}</section>"
    )


def _when(result: Result) -> str:
    seen = result.seen
    until = show(result.until) if result.until is not None else "the end of the exports"
    return (
        f"{show(result.since)} to {until}; {seen.allowed} requests allowed, {seen.denied} refused"
        if seen.records
        else ""
    )


def _not_checked(result: Result) -> str:
    parts = []
    if result.grouped:
        parts.append(f"{result.grouped} of them only as one of several that look alike, or by a count")
    if result.unchecked:
        parts.append(f"{result.unchecked} went to targets of which no export was given")
    if result.seen.tunnels:
        parts.append(f"{result.seen.tunnels} opaque connections are beside that")
    return f"; {' and '.join(parts)}" if parts else ""


def _percent(part: int, whole: int) -> str:
    if not whole:
        return "none were made"
    tenths = part * 1000 // whole  # cut, never rounded up to 100
    return f"{tenths // 10}.{tenths % 10} %"


def _bar(result: Result) -> str:
    width = result.checkable * 560 // result.allowed if result.allowed else 0
    label = f"{result.checkable} of {result.allowed} requests could be checked"
    return (
        f'<svg class="bar" viewBox="0 0 560 14" role="img" aria-label="{label}"><rect width="560" height="14" rx="3" '
        f'fill="#e4e8ec"/><rect width="{width}" height="14" rx="3" fill="#3d6ea5"/></svg>'
    )


def _totals(result: Result) -> dict[str, int]:
    """Findings by class, a pair once; then what concerns whole sources."""
    totals: dict[str, int] = {}
    for part in result.parts:
        for name in {*part.gateway, *part.records}:
            count = max(part.gateway.get(name, 0), part.records.get(name, 0))
            totals[name] = totals.get(name, 0) + count
    for item in result.findings:
        if item.class_ is not Class.COVERAGE_GAP:
            totals[item.class_] = totals.get(item.class_, 0) + item.count
    order = list(MEANINGS)
    return dict(sorted(totals.items(), key=lambda item: order.index(Class(item[0]))))


def _tone(name: str) -> str:
    label = _LABELS[severity(name)]
    return f'<span class="tag {label}">{escape(name)}</span>'


def _counts(result: Result) -> str:
    names = [
        str(name) for name in MEANINGS if any(name in part.gateway or name in part.records for part in result.parts)
    ]
    rows = []
    for name in names:
        ours = sum(part.gateway.get(name, 0) for part in result.parts)
        theirs = sum(part.records.get(name, 0) for part in result.parts)
        rows.append([_tone(name), str(ours or "-"), str(theirs or "-"), escape(MEANINGS[Class(name)].words)])
    note = (
        '<p class="soft">A request is counted once for each export that covers its target.</p>'
        if len(result.parts) > 1
        else ""
    )
    head = [("Class", ""), ("Requests", "n"), ("Records", "n"), ("What it means", "")]
    return section("Counts", note + table(head, rows))


def _of_sources(result: Result) -> str:
    if not result.findings:
        return ""
    rows = [[_tone(item.class_), escape(item.source), escape(item.words)] for item in result.findings]
    return section("Findings about whole exports", table([("Class", ""), ("Source", ""), ("What", "")], rows))


def _timelines(store: Store, result: Result) -> str:
    lines = timelines(store, result)
    if not lines:
        return ""
    figures = "".join(f"<figure><figcaption>{escape(line.title)}</figcaption>{chart(line)}</figure>" for line in lines)
    keys = "".join(_legend(tone, words) for tone, words in zip(TONES, _KINDS, strict=True))
    return section("Over time", f'<p class="soft">{keys}</p>{figures}')


_KINDS = ("in agreement", "expected to be absent, or pending", "findings")


def _legend(tone: str, words: str) -> str:
    square = f'<rect width="12" height="12" fill="{tone}"/>'
    return f'<svg class="key" viewBox="0 0 12 12" aria-hidden="true">{square}</svg> {words}&emsp;'


def _findings(store: Store, result: Result) -> str:
    out = []
    for name, meaning in MEANINGS.items():
        if not meaning.severity:
            continue
        shown = SHOWN_OF_GAPS if name is Class.COVERAGE_GAP else SHOWN
        rows = list(findings(store, result, shown + 1, str(name)))
        if not rows:
            continue
        more = f'<p class="soft">The first {shown}; the others are in report.json.</p>' if len(rows) > shown else ""
        cells = [[escape(row.words) + _join(row), _ours(row.ours), _theirs(row.theirs)] for row in rows[:shown]]
        head = [("Why", ""), ("In the ledger", ""), ("At the target", "")]
        out.append(f"<h3>{_tone(name)}</h3>{more}{table(head, cells, 'findings')}")
    return section("Findings", "".join(out) or "<p>None.</p>")


def _join(row: Row) -> str:
    parts = [f"source {escape(row.source)}"] if row.source else []
    parts += [f"paired by {escape(row.join)}"] if row.join else []
    return f'<br><span class="soft">{"; ".join(parts)}</span>'


def _ours(side: Ours | None) -> str:
    if side is None:
        return '<span class="soft">nothing</span>'
    status = f" &rarr; {side.status}" if side.status else ""
    secret = f", secret {escape(side.secret)}" if side.secret else ""
    return (
        f'<span class="mono">{escape(side.method)} {escape(side.host)}{escape(side.path)}{status}</span><br>'
        f"record {side.seq}, {side.time}, run {escape(side.run)}{secret}"
    )


def _theirs(side: Theirs | None) -> str:
    if side is None:
        return '<span class="soft">nothing</span>'
    what = f"{side.method} {side.host}{side.path}".strip() if side.path or side.method else side.host
    status = f" &rarr; {side.status}" if side.status else ""
    more = [f"from {escape(side.address)}"] if side.address else []
    more += [f"credential {escape(side.credential)}"] if side.credential else []
    return (
        f'<span class="mono">{escape(" ".join(part for part in (side.action, what) if part))}{status}</span><br>'
        f"{escape(side.file)} record {side.record}, {side.time}{'<br>' if more else ''}{', '.join(more)}"
    )


def _shared(result: Result) -> str:
    if not result.shared and not result.contents:
        return ""
    words = f"{len(result.shared)} hosts and {len(result.contents)} contents: runs.html has them."
    return section("What several runs shared", f"<p>{words}</p>")


def _sources(result: Result) -> str:
    return section("Exports", "".join(_source(part) for part in result.parts))


def _source(part: Part) -> str:
    skew = part.skew
    clock = (
        f"{skew.median / 1e6:+.3f} s, spread {skew.mad / 1e6:.3f} s, from {skew.samples} {skew.by}"
        if skew.samples
        else "not measured"
    )
    checked = sum(count for name, count in part.gateway.items() if name in CHECKED)
    asked = sum(count for name, count in part.gateway.items() if name not in (Class.DENIED, Class.DENY_BUT_SEEN))
    said = [
        ("Hosts", ", ".join(part.target.hosts) or "none"),
        ("Could be checked", f"{checked} of {asked} requests to these hosts"),
        ("Clock against ours", clock),
        ("Window", f"{skew.window / 1e6:.3f} s"),
        ("Credentials of ours", ", ".join(part.held) or "none named in these records"),
        ("Source addresses of ours", ", ".join(part.target.egress) or "not given"),
    ]
    rows = [
        [
            escape(file.name),
            str(file.records),
            escape(", ".join(f"{count}: {why}" for why, count in sorted(file.unreadable.items())) or "none"),
            f"<code>{file.sha256}</code>",
        ]
        for file in part.files
    ]
    head = [("File", ""), ("Records", "n"), ("Unreadable", ""), ("SHA-256", "")]
    return f"<h3>{escape(part.target.title)} ({escape(part.target.name)})</h3>{facts(said)}{table(head, rows, 'files')}"


def _ledger(result: Result) -> str:
    seen, report = result.seen, result.seen.report
    said = [
        ("State", report.status.name.lower()),
        ("Key", f"{report.pubkey} ({report.trust or 'not checked'})" if report.pubkey else "none"),
        ("Signed", f"{report.signed} of {report.records} records"),
        ("Witness", report.witness),
        ("Records", str(report.records)),
        ("Last line, SHA-256", report.last_sha256),
        ("First and last", f"{show(seen.first)}, {show(seen.last)}" if seen.records else "none"),
        ("Policies, SHA-256", ", ".join(sorted(seen.policies)) or "none named"),
        ("Notes", "; ".join(report.notes) or "none"),
    ]
    return section("Ledger", facts(said))


def _parameters(result: Result) -> str:
    said = [
        (escape(name), "not given" if value is None else str(value))
        for name, value in result.parameters.items()
        if name != "sources"
    ]
    rows = [
        [
            escape(part.target.name),
            escape(part.target.format),
            escape(f"{part.target.stamp} of the request, {part.target.resolution_ms} ms"),
            f"{part.target.delay_s} s",
            escape(", ".join(part.target.key) or "counts"),
            escape("; ".join(f"{rule.id}: {rule.why}" for rule in part.target.absent) or "none"),
        ]
        for part in result.parts
    ]
    head = [
        ("Source", ""),
        ("Format", ""),
        ("Its time is", ""),
        ("Delay", "n"),
        ("Key", ""),
        ("Expected to be absent", ""),
    ]
    return section("Parameters", facts(said) + table(head, rows))


def _meanings() -> str:
    rows = [[_tone(name), _LABELS[m.severity], escape(m.words)] for name, m in MEANINGS.items()]
    return section("All classes", table([("Class", ""), ("Severity", ""), ("What it means", "")], rows))
