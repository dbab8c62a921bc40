"""The parts that the report's pages are made of: no script, nothing loaded, fit for print."""

from collections.abc import Iterable
from html import escape
from importlib import resources


def document(title: str, body: str, about: str) -> str:
    """A whole page. `body` and `about` are markup already."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    style = resources.files("credgate.reconcile").joinpath("report.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light">'
        f'<title>{escape(title)}</title><style>{style}</style></head>\n<body>{body}<p class="soft">{about}</p>'
        "</body></html>\n"
    )


def table(head: Iterable[tuple[str, str]], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """A table. `head`: titles, and "n" for a column of numbers; cells are markup already."""
    columns = list(head)
    top = "".join(f'<th scope="col" class="{mark}">{title}</th>' for title, mark in columns)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{mark}">{cell}</td>' for cell, (_, mark) in zip(row, columns, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def section(title: str, body: str) -> str:
    """A heading with what belongs to it."""
    return f'<h2 id="{title.lower().replace(" ", "-")}">{title}</h2>{body}'


def facts(facts: Iterable[tuple[str, str]]) -> str:
    """Names and values, which are escaped here."""
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts) + "</dl>"
