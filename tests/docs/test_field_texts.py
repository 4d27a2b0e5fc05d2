"""Each field of the answers has one text, in docs/vocabulary.md."""

import re
import runpy
import tomllib

from places import ROOT

MAKER = runpy.run_path(str(ROOT / "scripts/make-api"))
TEXTS = tomllib.loads(MAKER["FIELD_TEXTS"].read_text("utf-8"))
ROW = re.compile(r"\| `(\w+)` \| [^|]+ \| (.+) \|")


def test_a_field_that_answers_describe_in_several_ways_has_one_text():
    _, texts = MAKER["fields_of_answers"]()
    several = {name for name, of_answers in texts.items() if len(of_answers) > 1}
    assert several <= TEXTS.keys(), several - TEXTS.keys()
    assert texts.keys() >= TEXTS.keys(), TEXTS.keys() - texts.keys()
    assert all(text.endswith(".") and text[0] != " " for text in TEXTS.values())


def test_the_page_has_each_field_once_with_its_text():
    rows = ROW.findall((ROOT / "docs/vocabulary.md").read_text("utf-8"))
    names = [name for name, _ in rows]
    assert len(names) == len(set(names)) > 600
    page = dict(rows)
    assert {name: page[name] for name in TEXTS} == TEXTS
