"""Quiz files read back into one shape, to compare with what was asked; each reader is strict about its format."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET
import zipfile
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser

BLANK = "___"
MATHML = "{http://www.w3.org/1998/Math/MathML}"


@dataclass
class Read:
    """One question of a file. Shares are from -1 to 1; texts are plain, with formulas between dollar signs."""

    id: str
    text: str
    kind: str  # single, multiple, numeric, text, ordering, cloze
    options: list[tuple[str, float, str]] = field(default_factory=list)  # text, share, feedback
    numbers: list[tuple[float, float, float, str]] = field(default_factory=list)  # low, high, share, feedback
    words: list[tuple[str, float, str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)  # from the first to the last
    gaps: list[Read] = field(default_factory=list)
    feedback: str = ""
    images: list[bytes] = field(default_factory=list)


class _Text(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts = []

    def handle_starttag(self, tag, attrs):
        if tag in ("br", "p", "li", "td", "th", "div"):
            self.parts.append(" ")

    def handle_endtag(self, tag):
        self.handle_starttag(tag, ())

    def handle_data(self, data):
        self.parts.append(data)


def plain(html):
    r"""HTML as plain text: single spaces, `\(x\)` and `\[x\]` as `$x$`."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    text = re.sub(r"\\\((.*?)\\\)|\\\[(.*?)\\\]", lambda m: f"${m[1] or m[2]}$", "".join(parser.parts), flags=re.S)
    return " ".join(text.replace("$$", "$").split())


def read_moodle(data):
    """The category and the questions of a Moodle XML file."""
    root = ET.fromstring(data)
    assert root.tag == "quiz"
    category, *questions = root
    assert category.get("type") == "category"
    return category.findtext("category/text"), [_moodle_question(one) for one in questions]


_MOODLE = {
    "multichoice": "single shuffleanswers answernumbering correctfeedback partiallycorrectfeedback incorrectfeedback",
    "numerical": "units unitgradingtype unitpenalty showunits unitsleft",
    "shortanswer": "usecase",
    "ordering": "layouttype selecttype selectcount gradingtype showgrading numberingstyle correctfeedback "
    "partiallycorrectfeedback incorrectfeedback",
    "cloze": "",
}


def _moodle_question(question):
    kind = question.get("type")
    known = "name questiontext generalfeedback defaultgrade penalty hidden idnumber answer " + _MOODLE[kind]
    assert {part.tag for part in question} <= set(known.split())
    for part in question:
        if part.tag in ("name", "questiontext", "generalfeedback", "answer") or part.tag.endswith("feedback"):
            assert part[0].tag == "text", part.tag
    text = question.findtext("questiontext/text")
    images = _moodle_images(question.find("questiontext"), text)
    text = re.sub(r"<p><img[^>]*/></p>", "", text)
    number, _, id = question.findtext("name/text").partition(" ")
    assert number.isdigit() and id == question.findtext("idnumber")
    read = Read(id, plain(text), kind, feedback=plain(question.findtext("generalfeedback/text") or ""), images=images)
    answers = [
        (
            answer.findtext("text") or "",
            float(answer.get("fraction")) / 100,
            plain(answer.findtext("feedback/text") or ""),
            answer.findtext("tolerance"),
        )
        for answer in question.findall("answer")
    ]
    if kind == "multichoice":
        read.kind = {"true": "single", "false": "multiple"}[question.findtext("single")]
        read.options = [(plain(text), share, feedback) for text, share, feedback, _ in answers]
        assert question.findtext("shuffleanswers") == "false"
    elif kind == "numerical":
        read.kind = "numeric"
        read.numbers = [_around(text, tolerance, share, feedback) for text, share, feedback, tolerance in answers]
    elif kind == "shortanswer":
        read.kind = "text"
        read.words = [(_without_stars(text), share, feedback) for text, share, feedback, _ in answers]
        assert question.findtext("usecase") == "0"
    elif kind == "ordering":
        assert [share * 100 for _, share, _, _ in answers] == list(range(1, len(answers) + 1))
        assert question.findtext("gradingtype") == "ABSOLUTE_POSITION" and question.findtext("selecttype") == "ALL"
        read.order = [plain(text) for text, *_ in answers]
    else:
        read.text, read.gaps = _embedded(text)
    return read


def _moodle_images(part, text):
    files = {one.get("name"): one for one in part.findall("file")}
    used = re.findall(r'src="@@PLUGINFILE@@/([^"]+)"', text)
    assert sorted(files) == sorted(used)
    return [_base64(files[name].text) for name in used]


def _embedded(text):
    """The text with blanks, and the embedded answers, found as Moodle finds them: up to a bare closing brace."""
    gaps = []

    def gap(found):
        weight, kind, inside = found.groups()
        assert weight == "1"
        read = Read("", "", {"NUMERICAL": "numeric", "SHORTANSWER": "text"}.get(kind, "single"))
        for alternative in re.split(r"(?<!\\)~", inside):
            percent, rest = re.fullmatch(r"%(-?[0-9.]+)%(.*)", alternative, flags=re.S).groups()
            answer, _, feedback = re.fullmatch(r"((?:[^#]|(?<=&)#)+)(#(.*))?", rest, flags=re.S).groups()
            share, feedback = float(percent) / 100, plain(unescape(feedback or ""))
            if kind == "NUMERICAL":
                value, tolerance = re.fullmatch(
                    r"(-?[0-9.]+(?:e[-+]?[0-9]+)?):(-?[0-9.]+(?:e[-+]?[0-9]+)?)", answer
                ).groups()
                read.numbers.append(_around(value, tolerance, share, feedback))
            elif kind == "SHORTANSWER":
                read.words.append((_without_stars(unescape(answer)), share, feedback))
            else:
                read.options.append((plain(unescape(answer)), share, feedback))
        gaps.append(read)
        return BLANK

    text = re.sub(r"\{([0-9]*):(NUMERICAL|SHORTANSWER|MULTICHOICE_V|MULTICHOICE):([^}]*)\}", gap, text)
    assert "{" not in text and "}" not in text
    return plain(text), gaps


def read_canvas(data):
    """The questions of a QTI 1.2 package for Canvas."""
    files = unzip(data)
    manifest = ET.fromstring(files["imsmanifest.xml"])
    hrefs = [file.get("href") for file in manifest.iter() if file.tag.endswith("}file")]
    assert sorted([*hrefs, "imsmanifest.xml"]) == sorted(files)
    (name,) = [href for href in hrefs if href.endswith(".xml") and "meta" not in href]
    text = files[name].decode().replace(' xmlns="http://www.imsglobal.org/xsd/ims_qtiasiv1p2"', "")
    items = ET.fromstring(text.encode()).findall("assessment/section/item")
    seen = set()  # no two questions share a label
    for item in items:
        idents = {label.get("ident") for label in item.iter("response_label")} - {"answer1"}
        assert not idents & seen and all(ident.isdigit() for ident in idents)
        seen |= idents
    return text, [_canvas_item(item, files) for item in items]


def _canvas_item(item, files):
    fields = {one.findtext("fieldlabel"): one.findtext("fieldentry") for one in item.iter("qtimetadatafield")}
    kind = fields["question_type"]
    assert fields["points_possible"] == "1"
    comments = {one.get("ident"): plain(one.findtext("flow_mat/material/mattext")) for one in item.iter("itemfeedback")}
    linked = {one.get("linkrefid") for one in item.iter("displayfeedback")}
    assert set(comments) == linked
    html = item.findtext("presentation/material/mattext")
    images = [files[path] for path in re.findall(r'src="\$IMS-CC-FILEBASE\$/([^"]+)"', html)]
    text = re.sub(r"<p><img[^>]*/></p>", "", html)
    read = Read(item.get("title").partition(" ")[2], plain(text), kind, images=images)
    read.feedback = comments.pop("general_fb", "")
    wrong = comments.pop("general_incorrect_fb", "")
    lids = item.findall("presentation/response_lid")
    labels = [
        (label.get("ident"), label.find("material/mattext")) for lid in lids for label in lid.iter("response_label")
    ]
    texts = {ident: plain(t.text) if t.get("texttype") == "text/html" else t.text for ident, t in labels}
    conditions = [one for one in item.findall("resprocessing/respcondition") if one.find("setvar") is not None]
    if kind in ("multiple_choice_question", "multiple_answers_question"):
        read.kind = "single" if kind == "multiple_choice_question" else "multiple"
        assert lids[0].get("rcardinality") == ("Single" if read.kind == "single" else "Multiple")
        (condition,) = conditions
        assert condition.findtext("setvar") == "100" and condition.find("setvar").get("action") == "Set"
        wanted = condition.find("conditionvar")
        wanted = wanted if read.kind == "single" else wanted.find("and")
        right = {one.text for one in wanted.findall("varequal")}
        if read.kind == "multiple":
            assert right | {one.text for one in wanted.findall("not/varequal")} == set(texts)
        share = 1 / len(right)
        off = 0 if read.kind == "single" else -share
        read.options = [(texts[i], share if i in right else off, comments.pop(f"{i}_fb", "")) for i in texts]
    elif kind == "numerical_question":
        (condition,) = conditions
        near = condition.find("conditionvar/or")
        low, high = float(near.findtext("and/vargte")), float(near.findtext("and/varlte"))
        assert low <= float(near.findtext("varequal")) <= high
        read.kind, read.numbers = "numeric", [(low, high, 1.0, wrong)]
    elif kind == "short_answer_question":
        (condition,) = conditions
        read.kind = "text"
        read.words = [(one.text, 1.0, wrong) for one in condition.findall("conditionvar/varequal")]
    else:
        right = [(one.find("conditionvar/varequal"), float(one.findtext("setvar"))) for one in conditions]
        assert all(one.find("setvar").get("action") == "Add" for one in conditions)
        assert all(worth == round(100 / len(lids), 2) for _, worth in right)
        by_field = {lid.get("ident"): lid for lid in lids}
        if kind == "matching_question":
            read.kind = "ordering"
            at = {texts[one.text]: one.get("respident") for one, _ in right}
            assert list(at) != [] and sorted(at, key=int) == [str(n) for n in range(1, len(lids) + 1)]
            read.order = [plain(by_field[at[str(n)]].findtext("material/mattext")) for n in range(1, len(lids) + 1)]
        else:
            chosen = {}
            for one, _ in right:
                chosen.setdefault(one.get("respident"), []).append(texts[one.text])
            for name, lid in by_field.items():
                assert name == f"response_{lid.findtext('material/mattext')}"
                assert f"[{lid.findtext('material/mattext')}]" in read.text
                offered = [texts[label.get("ident")] for label in lid.iter("response_label")]
                words = [(text, float(text in chosen[name]), wrong) for text in offered]
                read.gaps.append(Read("", name.removeprefix("response_"), kind, words=words))
    assert not comments
    return read


def read_qti21(data):
    """The items of a QTI 2.1 package: each as XML, and what it says."""
    files = unzip(data)
    manifest = ET.fromstring(files["imsmanifest.xml"])
    paths = [one.get("href") for one in manifest.iter() if one.tag.endswith("}resource") and "item" in one.get("type")]
    return [(files[path], _qti21_item(_without_namespace(files[path]), files)) for path in paths]


def _without_namespace(data):
    root = ET.fromstring(data)
    for one in root.iter():
        one.tag = one.tag.replace("{http://www.imsglobal.org/xsd/imsqti_v2p1}", "")
    return root


def _qti21_item(item, files):
    shown = {one.get("identifier"): qti_text(one) for one in item.iter("modalFeedback")}
    when = {}  # which condition shows what
    for rule in item.iter("setOutcomeValue"):
        if rule.get("identifier") == "FEEDBACK":
            when[rule.findtext("multiple/baseValue")] = True
    assert set(shown) == set(when)
    body = item.find("itemBody")
    images = [files["items/" + one.get("src")] for one in body.iter("img")]
    declared = {one.get("identifier"): one for one in item.iter("responseDeclaration")}
    gaps = []
    for interaction in body.iter():
        if not str(interaction.tag).endswith("Interaction"):
            continue
        name = interaction.get("responseIdentifier")
        gaps.append(_qti21_field(item, interaction, declared.pop(name), name, shown))
    assert not declared
    text = qti_text(body, leave_out=("choiceInteraction", "orderInteraction"))
    id = item.get("title").partition(" ")[2]
    if any(
        name.startswith("RESPONSE-") for name in (one.get("identifier") for one in item.iter("responseDeclaration"))
    ):
        return Read(id, text, "cloze", gaps=gaps, feedback=shown.get("general", ""), images=images)
    (read,) = gaps
    read.id, read.text, read.feedback, read.images = id, text, shown.get("general", ""), images
    return read


def _qti21_field(item, interaction, declaration, name, shown):
    right = [one.text for one in declaration.findall("correctResponse/value")]
    kind = interaction.tag
    read = Read("", "", kind)
    if kind in ("choiceInteraction", "inlineChoiceInteraction"):
        mapping = declaration.find("mapping")
        shares = {one.get("mapKey"): float(one.get("mappedValue")) for one in mapping.findall("mapEntry")}
        worth = float(mapping.get("upperBound"))
        read.kind = {"single": "single", "multiple": "multiple"}[declaration.get("cardinality")]
        for choice in interaction:
            ident = choice.get("identifier")
            read.options.append((qti_text(choice), shares.get(ident, 0) / worth, shown.get(f"{name}-{ident}", "")))
            assert (ident in right) == (shares.get(ident, 0) > 0)
        if kind == "choiceInteraction":
            assert interaction.get("maxChoices") == ("1" if read.kind == "single" else "0")
    elif kind == "orderInteraction":
        texts = {choice.get("identifier"): qti_text(choice) for choice in interaction}
        read.kind, read.order = "ordering", [texts[ident] for ident in right]
    elif declaration.get("baseType") == "float":
        read.kind = "numeric"
        for number, case in enumerate(_cases(item, name)):
            low = float(case.findtext("and/gte/baseValue"))
            high = float(case.findtext("and/lte/baseValue"))
            read.numbers.append((low, high, float(number == 0), shown.get(f"{name}-M{number}", "")))
            assert number or low <= float(right[0]) <= high
    else:
        read.kind = "text"
        for number, case in enumerate(_cases(item, name)):
            for match in case.iter("stringMatch"):
                assert match.get("caseSensitive") == "false"
                words = match.findtext("baseValue")
                read.words.append((words, float(number == 0), shown.get(f"{name}-M{number}", "")))
    return read


def _cases(item, name):
    for rule in item.findall("responseProcessing/responseCondition"):
        about = {one.get("identifier") for one in rule[0][0].iter("variable")}
        if about == {name} and rule[0].find("setOutcomeValue").get("identifier") == "SCORE":
            return list(rule)
    raise AssertionError(f"nothing is scored for {name}")


def qti_text(element, leave_out=()):
    """The text of QTI's XHTML: fields are blanks, formulas their LaTeX."""
    parts = []

    def walk(one):
        if one.tag in leave_out or one.tag == "img":
            return
        if one.tag == f"{MATHML}math":
            parts.append(f"${one.get('alttext')}$")
            return
        parts.append(BLANK if one.tag.endswith("Interaction") else " " if one.tag in ("p", "div", "li", "br") else "")
        if not one.tag.endswith("Interaction"):
            parts.append(one.text or "")
            for child in one:
                walk(child)
                parts.append(child.tail or "")
        if one.tag in ("p", "div", "li"):
            parts.append(" ")

    walk(element)
    return plain_spaces("".join(parts))


def plain_spaces(text):
    """Single spaces."""
    return " ".join(re.sub(r"\\\((.*?)\\\)", r"$\1$", text).split())


def unzip(data):
    """The files of a zip, by their paths."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert len(set(archive.namelist())) == len(archive.namelist())
        return {name: archive.read(name) for name in archive.namelist()}


def _around(value, tolerance, share, feedback):
    return float(value) - float(tolerance), float(value) + float(tolerance), share, feedback


def _without_stars(text):
    assert not re.search(r"(?<!\\)\*", text)
    return text.replace(r"\*", "*")


def _base64(text):
    return base64.b64decode(text, validate=True)
