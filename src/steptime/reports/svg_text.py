"""Widths of the texts of SVG pictures, so that no font of a reader cuts them off.

A picture is laid out with the widths of Helvetica (Arial and Liberation Sans have the same). A
reader without these fonts sees another one, which may be wider than the picture has room for, so
that each text states its width and a viewer fits it in.

Source of the widths: Adobe Font Metrics of the 14 core fonts of PostScript, Helvetica and
Helvetica-Bold.
"""

import re
from html import unescape

FIRST, LAST = 32, 126  # codes of the characters with a width of their own
UNITS_PER_EM = 1000
DEFAULT_WIDTH = 556  # of a digit, and of most letters
# fmt: off
REGULAR = (
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278,
    556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
    1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
    333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556,
    556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
)
BOLD = (
    278, 333, 474, 556, 556, 889, 722, 238, 333, 333, 389, 584, 278, 333, 278, 278,
    556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 333, 333, 584, 584, 584, 611,
    975, 722, 722, 722, 722, 667, 611, 778, 722, 278, 556, 722, 611, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 333, 278, 333, 584, 556,
    333, 556, 611, 556, 611, 556, 333, 611, 611, 278, 278, 556, 278, 889, 611, 611,
    611, 611, 389, 556, 333, 611, 556, 778, 556, 556, 500, 389, 280, 389, 584,
)
# fmt: on
OTHER_WIDTHS = {"\u00a0": 278, "\u2212": 584, "\u00d7": 584, "\u00b7": 278, "\u2026": 1000}

_TEXT = re.compile(r"<text( [^>]*)>(.*?)</text>", re.DOTALL)
_LINE = re.compile(r"<tspan([^>]*)>([^<]*)</tspan>")
_SIZE = re.compile(r'font-size="([\d.]+)px"')


def state_text_lengths(svg: str) -> str:
    """Return an SVG picture in which each text states its width in Helvetica."""
    return _TEXT.sub(_state_length, svg)


def measure_text(text: str, size: float, *, is_bold: bool = False) -> float:
    """Return the width of a text in Helvetica of a size, in the unit of the size."""
    widths = BOLD if is_bold else REGULAR
    total = 0
    for character in text:
        code = ord(character)
        is_listed = FIRST <= code <= LAST
        default = OTHER_WIDTHS.get(character, DEFAULT_WIDTH)
        total += widths[code - FIRST] if is_listed else default
    return total * size / UNITS_PER_EM


def _state_length(match: re.Match[str]) -> str:
    """Return a text, or each of its lines, with its width."""
    attributes, content = match.groups()
    size = _SIZE.search(attributes)
    if size is None:  # a text without a size has no width to state
        return match[0]
    is_bold = 'font-weight="bold"' in attributes

    def format_length(text: str) -> str:
        width = measure_text(unescape(text).strip(), float(size[1]), is_bold=is_bold)
        return f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"' if width else ""

    def format_line(line: re.Match[str]) -> str:
        line_attributes, text = line.groups()
        return f"<tspan{line_attributes}{format_length(text)}>{text}</tspan>"

    has_lines = "<" in content  # each a `tspan`
    if has_lines:
        return f"<text{attributes}>{_LINE.sub(format_line, content)}</text>"
    return f"<text{attributes}{format_length(content)}>{content}</text>"
