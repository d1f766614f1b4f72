"""The structure of QTI 2.1 items, tests and manifests, as the specification's information model has it.

This stands in for the XML Schema, which no package ships: it is written from the specification for the elements that
are used, and refuses all others, unknown attributes, children that are out of order, and names that are not declared.
Those of the item, its body, mapping, inline choices and modal feedback, the test, its section and references, lists and
quotes were compared with the published schema (IMS QTI 2.1, imsqti_v2p1.xsd), whose licence does not let it lie here.
"""

import re
import xml.etree.ElementTree as ET

from quiz_readers import unzip

_QTI = "{http://www.imsglobal.org/xsd/imsqti_v2p1}"
_CP = "{http://www.imsglobal.org/xsd/imscp_v1p1}"
_MATHML = "{http://www.w3.org/1998/Math/MathML}"
_SCHEMA = "{http://www.w3.org/2001/XMLSchema-instance}schemaLocation"
_HEADS = [f"h{level}" for level in range(1, 7)]
_TEXT = ["b", "code", "em", "i", "kbd", "q", "span", "strong", "sub", "sup"]
_INLINE = [*_TEXT, "a", "br", "img", "math", "textEntryInteraction", "inlineChoiceInteraction"]
_BLOCK = [*_HEADS, "p", "pre", "blockquote", "ul", "ol", "table", "hr", "div", "math"]
_BLOCK += ["choiceInteraction", "orderInteraction", "extendedTextInteraction"]
_STATIC = [name for name in [*_INLINE, *_BLOCK] if not name.endswith("Interaction")]
_BOOLEAN = ["and", "or", "not", "isNull", "match", "member", "stringMatch", "gte", "lte"]
_VALUE = ["variable", "baseValue", "sum", "multiple", "mapResponse", "index", "testVariables"]


def _one_of(names):
    return f"({''.join(f'|{name},' for name in sorted(set(names)))[1:]})"


_FLOW = f"{_one_of([*_INLINE, *_BLOCK])}*"
_BLOCKS = f"{_one_of(_BLOCK)}*"
_IN_LINE = f"{_one_of(_INLINE)}*"
_ANY_STATIC = f"{_one_of(_STATIC)}*"
_CONDITION = _one_of(_BOOLEAN)
_EXPRESSION = _one_of([*_BOOLEAN, *_VALUE])
# an element's required attributes, optional ones, children, and whether it holds text
_MODEL = {
    "assessmentItem": (
        "identifier title adaptive timeDependent",
        _SCHEMA,
        "(responseDeclaration,)*(outcomeDeclaration,)*itemBody,responseProcessing,(modalFeedback,)*",
    ),
    "responseDeclaration": ("identifier cardinality baseType", "", "(correctResponse,)?(mapping,)?"),
    "correctResponse": ("", "", "(value,)+"),
    "mapping": ("defaultValue", "lowerBound upperBound", "(mapEntry,)+"),
    "mapEntry": ("mapKey mappedValue", "caseSensitive", ""),
    "outcomeDeclaration": ("identifier cardinality", "baseType", "(defaultValue,)?"),
    "defaultValue": ("", "", "(value,)+"),
    "value": ("", "", "", True),
    "itemBody": ("", "", f"{_one_of([*_BLOCK, 'rubricBlock'])}*"),
    "rubricBlock": ("view", "", _BLOCKS),
    "responseProcessing": ("", "template", "(responseCondition,|setOutcomeValue,)*"),
    "responseCondition": ("", "", "responseIf,(responseElseIf,)*(responseElse,)?"),
    "responseIf": ("", "", f"{_CONDITION}(setOutcomeValue,)*"),
    "responseElseIf": ("", "", f"{_CONDITION}(setOutcomeValue,)*"),
    "setOutcomeValue": ("identifier", "", _EXPRESSION),
    "modalFeedback": ("outcomeIdentifier identifier showHide", "title", _ANY_STATIC, True),
    "variable": ("identifier", "weightIdentifier", ""),
    "baseValue": ("baseType", "", "", True),
    "mapResponse": ("identifier", "", ""),
    "testVariables": ("", "variableIdentifier sectionIdentifier", ""),
    "index": ("n", "", _EXPRESSION),
    "sum": ("", "", f"{_EXPRESSION}+"),
    "multiple": ("", "", f"{_EXPRESSION}*"),
    "match": ("", "", _EXPRESSION * 2),
    "member": ("", "", _EXPRESSION * 2),
    "gte": ("", "", _EXPRESSION * 2),
    "lte": ("", "", _EXPRESSION * 2),
    "stringMatch": ("caseSensitive", "substring", _EXPRESSION * 2),
    "and": ("", "", f"{_CONDITION}+"),
    "or": ("", "", f"{_CONDITION}+"),
    "not": ("", "", _CONDITION),
    "isNull": ("", "", _EXPRESSION),
    "choiceInteraction": ("responseIdentifier shuffle maxChoices", "minChoices", "(simpleChoice,)+"),
    "orderInteraction": ("responseIdentifier shuffle", "orientation", "(simpleChoice,)+"),
    "simpleChoice": ("identifier", "fixed", _ANY_STATIC, True),
    "textEntryInteraction": ("responseIdentifier", "expectedLength base", ""),
    "extendedTextInteraction": ("responseIdentifier", "expectedLines expectedLength", ""),
    "inlineChoiceInteraction": ("responseIdentifier shuffle", "required", "(inlineChoice,)+"),
    "inlineChoice": ("identifier", "fixed", "", True),
    "assessmentTest": ("identifier title", _SCHEMA, "(outcomeDeclaration,)*(testPart,)+(outcomeProcessing,)?"),
    "testPart": ("identifier navigationMode submissionMode", "", "(assessmentSection,)+"),
    "assessmentSection": ("identifier title visible", "", "(assessmentItemRef,)*"),
    "assessmentItemRef": ("identifier href", "", ""),
    "outcomeProcessing": ("", "", "(setOutcomeValue,)*"),
    # XHTML
    **dict.fromkeys(["p", "pre", *_TEXT, *_HEADS], ("", "", _IN_LINE, True)),
    "a": ("href", "", _IN_LINE, True),
    "br": ("", "", ""),
    "hr": ("", "", ""),
    "img": ("src alt", "", ""),
    "div": ("", "", _FLOW, True),
    "blockquote": ("", "", _BLOCKS),
    "ul": ("", "", "(li,)*"),
    "ol": ("", "", "(li,)*"),
    "li": ("", "", _FLOW, True),
    "table": ("", "", "(thead,)?(tbody,)+"),
    "thead": ("", "", "(tr,)+"),
    "tbody": ("", "", "(tr,)+"),
    "tr": ("", "", "(th,|td,)+"),
    "th": ("", "", _FLOW, True),
    "td": ("", "", _FLOW, True),
}
_FIELDS = {  # what a field's response must be declared as
    "choiceInteraction": {("single", "identifier"), ("multiple", "identifier")},
    "inlineChoiceInteraction": {("single", "identifier")},
    "orderInteraction": {("ordered", "identifier")},
    "textEntryInteraction": {("single", "float"), ("single", "string")},
    "extendedTextInteraction": {("single", "string")},
}
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


def check_package(data):
    """Fails where the package, its test or an item is not as the specification wants it."""
    files = unzip(data)
    manifest = ET.fromstring(files.pop("imsmanifest.xml"))
    assert [child.tag for child in manifest] == [f"{_CP}{name}" for name in ("metadata", "organizations", "resources")]
    resources = {one.get("identifier"): one for one in manifest.iter(f"{_CP}resource")}
    assert len(resources) == len(list(manifest.iter(f"{_CP}resource")))
    hrefs = {one.get("href") for one in manifest.iter(f"{_CP}file")}
    assert hrefs == set(files)
    for one in manifest.iter(f"{_CP}dependency"):
        assert one.get("identifierref") in resources
    for ident, resource in resources.items():
        assert _IDENTIFIER.fullmatch(str(ident))
        root = ET.fromstring(files[resource.get("href")])
        check_element(root)
        assert root.get("identifier") == ident
        is_test = resource.get("type") == "imsqti_test_xmlv2p1"
        assert root.tag == _QTI + ("assessmentTest" if is_test else "assessmentItem")
        if not is_test:
            _check_names(root, {one for one in files if one.endswith(".png")})
        for reference in root.iter(f"{_QTI}assessmentItemRef"):
            assert resources[reference.get("identifier")].get("href") == reference.get("href")


def check_element(element):
    """Fails where the element, or one in it, is unknown or not as the model wants it."""
    if element.tag.startswith(_MATHML):
        assert element.tag == f"{_MATHML}math"
        return
    assert element.tag.startswith(_QTI), element.tag
    name = element.tag.removeprefix(_QTI)
    required, optional, children, *holds_text = _MODEL[name]
    given = set(element.attrib)
    assert set(required.split()) <= given <= {*required.split(), *optional.split()}, (name, given)
    found = "".join(f"{child.tag.rpartition('}')[2]}," for child in element)
    assert re.fullmatch(children, found), f"{name} has {found}"
    said = (element.text or "") + "".join(child.tail or "" for child in element)
    assert holds_text or not said.strip(), f"{name} says {said!r}"
    for child in element:
        check_element(child)


def _check_names(item, images):
    responses = {one.get("identifier"): one for one in item.iter(f"{_QTI}responseDeclaration")}
    outcomes = {one.get("identifier"): one for one in item.iter(f"{_QTI}outcomeDeclaration")}
    assert len(responses) + len(outcomes) == len({*responses, *outcomes})
    assert all(_IDENTIFIER.fullmatch(name) for name in (*responses, *outcomes))
    for one in item.iter(f"{_QTI}variable"):
        assert one.get("identifier") in responses | outcomes
    for one in item.iter(f"{_QTI}mapResponse"):
        assert responses[one.get("identifier")].find(f"{_QTI}mapping") is not None
    for one in item.iter(f"{_QTI}setOutcomeValue"):
        assert one.get("identifier") in outcomes
    for one in item.iter(f"{_QTI}img"):
        assert f"items/{one.get('src')}" in images
    used = set()
    for one in item.iter():
        name = one.tag.removeprefix(_QTI)
        if name in _FIELDS:
            declared = responses[one.get("responseIdentifier")]
            used.add(one.get("responseIdentifier"))
            assert (declared.get("cardinality"), declared.get("baseType")) in _FIELDS[name]
            choices = [choice.get("identifier") for choice in one]
            assert len(set(choices)) == len(choices)
            assert (declared.find(f"{_QTI}correctResponse") is None) == (name == "extendedTextInteraction")
            right = [value.text for value in declared.findall(f"{_QTI}correctResponse/{_QTI}value")]
            assert not choices or set(right) <= set(choices)
    assert used == set(responses)
    for one in item.iter(f"{_QTI}baseValue"):
        kind = one.get("baseType")
        assert kind in ("float", "string", "identifier")
        if kind == "float":
            float(one.text)
        elif kind == "identifier":
            assert _IDENTIFIER.fullmatch(one.text)
