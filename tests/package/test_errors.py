"""Every error text in the package has one of the forms that CONTRIBUTING states."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from .source import FILES, STUDIES, name_of, parse

ADVICE = (
    "Add|Allow|Call|Change|Check|Choose|Compress|Convert|Copy|Correct|Decrease|Delete|Draw|Download|Drop|Encode|End|Evaluate|Fit|Fix|Free|"
    "Freeze|Give|Install|Keep|Leave|Make|Move|Name|Normalise|Omit|Pad|Pass|Predict|Put|Read|Reduce|Register|Remove|Rename|Resume|Run|"
    "Save|Set|Solve|Sort|Start|Take|Train|Try|Turn|Unfreeze|Untie|Use|Wait|Write"
)
"""Verbs with which a sentence says what to do."""
SENTENCE = re.compile(rf"(?:^|[.)}}] )(?:(?:For|To|Otherwise)\b[^.]*, (?i:{ADVICE})\b|(?:{ADVICE})\b)")
CLAUSE = re.compile(rf"[;:] (?i:{ADVICE})\b")
ANOTHER = re.compile(r"\{[^{}]*(?:advice|error|hint|instead|message|told)[^{}]*\}", re.IGNORECASE)
"""The text of another error, or advice that a function finds."""
START = re.compile(r"[A-ZΑ-Ω]|\{|--[a-z]")
CALLED = re.compile(r"[a-z_]\w*(?:\(\w*\))? needs\b")
"""A function and what it needs."""
ARCHAIC = re.compile(
    r"\b(?:is had|is none|are none|one a \w+|in which of|of one's own|whereof|thereof|hereby|shall|save for|so as to|"
    r"be it|lest|ought|upon|thus|hence|nor is|not any)\b"
)

FRAGMENT = re.compile(r"[a-z{](?!.*\. )(?!.*\.$)")
"""A text of a reader of files, which its caller completes: "model.calibrant is damaged: <fragment>."."""
# Texts that others prescribe, with the reason.
PRESCRIBED = {
    r"^(module|\{type\(self\).__name__\} object|.*) has no attribute": "Python's own words for a missing attribute",
    r"is expecting .* features as input": "scikit-learn's checks ask for these words",
}


def text_of(node):
    """The text of an expression, with its placeholders as they are written in the code; None if it is not a text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or f"{{{ast.unparse(part.value)}}}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return "".join(text_of(part) or f"{{{ast.unparse(part)}}}" for part in (node.left, node.right))
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.IfExp):
        return text_of(node.value)
    if isinstance(node, ast.IfExp):
        return text_of(node.body)
    if isinstance(node, ast.Name):
        return constants().get(node.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return text_of(node.func.value)
    return None


@cache
def constants():
    """Texts that a module gives a name, such as NO_VALIDATION_DATA."""
    assigned = [node for file in FILES + STUDIES for node in parse(file).body if isinstance(node, ast.Assign)]
    found = {ast.unparse(node.targets[0]): node.value for node in assigned}
    return {name: text for name, node in found.items() if isinstance(node, ast.Constant) and (text := text_of(node))}


@cache
def arguments():
    """The names of all arguments and fields of the package."""
    nodes = [node for file in FILES + STUDIES for node in ast.walk(parse(file))]
    fields = {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return fields | {node.arg for node in nodes if isinstance(node, ast.arg | ast.keyword)}


def raised():
    """Yield (place, text) for every text that the package raises."""
    for file in FILES + STUDIES:
        for node in ast.walk(parse(file)):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
                continue
            if ast.unparse(node.exc.func) == "AssertionError":  # for developers
                continue
            if (text := text_of(node.exc.args[0])) is not None:
                yield f"{name_of(file)}:{node.lineno}", text


def wrong_form(text):
    """What is wrong with a text, or None."""
    if any(re.search(pattern, text) for pattern in PRESCRIBED):
        return None
    if found := ARCHAIC.search(text):
        return f"write {found[0]!r} in plain words"
    if FRAGMENT.match(text):
        return None
    first = re.match(r"[a-z_]\w*", text)
    if not (START.match(text) or (first and first[0] in arguments()) or CALLED.match(text)):
        return "start with a capital letter, or with the name of an argument, a function or an option"
    if not (text.endswith(".") or re.search(ANOTHER.pattern + "$", text, re.IGNORECASE)):
        return "end with a full stop"
    required = re.search(r"\b(?:must|needs?)\b.*\bgot\b", text)
    if not (required or SENTENCE.search(text) or CLAUSE.search(text) or ANOTHER.search(text)):
        return "write 'x must be …; got …', or say what to do"
    return None


def test_errors_have_a_stated_form():
    found = list(raised())
    assert len(found) > 100  # the search finds the texts at all
    wrong = {place: (why, text) for place, text in found if (why := wrong_form(text))}
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "bins must be a positive integer.",
        "There is no file {path}.",
        "There is no file {path}",
        "both files must have labels; got one.",
        "Column 'age' is one of numbers, and 'x' is none. Give numbers.",
    ],
)
def test_other_forms_are_found(text):
    assert wrong_form(text)
