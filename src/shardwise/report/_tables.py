"""Tables as one HTML file: what discovery found, in the style of the page of a plan."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, heads, rows


def tables_page(title: str, said: Sequence[str], tables: Sequence[Table]) -> str:
    """A page with sentences and tables that needs no other file."""
    style = (files(__package__) / "page" / "plan.css").read_text()
    parts = [
        f"<header><h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in said),
        "</header><main>",
    ]
    for name, heads, rows in tables:
        head = "".join(f"<th>{escape(text)}</th>" for text in heads)
        body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>\n" for row in rows)
        parts.append(
            f'<section class="wide"><h2>{escape(name)}</h2><div class="scroll"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div></section>"
        )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="color-scheme" content="light dark">\n<style>\n{style}</style></head><body>\n'
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )
