"""Find the decimal numbers that a reader sees and that no cell of the notebook shows.

The rule, in full. Every decimal number (digits, a point, digits) in a Markdown cell, inline code and math included, and
in a figure's alt text, equals a number in the code (comments left out) or in a text output of the same notebook.
`0.50` equals `0.5`; a minus sign counts; `1.5 × 10^-3` is one number. In alt text a number may be the rounding of one
that is shown, since figures print fewer decimals than text. Not counted are

- the addresses of links, and HTML tags;
- versions and section numbers: `2.0.2`, "Python 3.11", "section 3.2";
- cited figures: numbers in a sentence that links to bibliography.md or to another site;
- numbers that the cell's metadata lists with a reason, `"book": {"cited": {"0.25": "why no cell shows it"}}`.
"""

import re
from decimal import ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal

MINUS = "-\N{MINUS SIGN}"
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
# A minus belongs to the number where nothing stands before it that it could be subtracted from.
SIGN = rf"(?P<sign>(?<![\w.)\]}}%|])[{MINUS}])?"
POWER = (
    r"(?:[eE](?P<e>[-+]?\d+)"
    r"|\s*(?:×|·|\*|\\times|\\cdot)\s*10(?:(?:\^\{?|\*\*)(?P<caret>[-−]?\d+)\}?|(?P<raised>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)))?"
)
DECIMAL = re.compile(rf"(?<![\w.]){SIGN}(?<![\w.])(?P<digits>\d+\.\d+)(?!\d|\.\d)" + POWER)
NUMBER = re.compile(rf"(?<![\w.]){SIGN}(?P<digits>\d+\.?\d*|\.\d+)" + POWER)

NAMES = (
    "Python|IPython|NumPy|numpy|PyTorch|torch|[Mm]atplotlib|ONNX|onnx|CUDA|Triton|Jupyter Book"
    "|[Vv]ersions?|[Ss]ections?|§"
)
VERSION = re.compile(rf"(?:{NAMES})\s*`?\d+\.\d+(?:(?:,| and| or| to)\s*`?\d+\.\d+)*")
ADDRESS = re.compile(
    r"(?<=\])\([^)\s]*\)|<https?://[^>]*>|</?(?:details|summary|br|su[bp]|kbd|em|strong|code)\b[^>\n]*>"
)
CITATION = re.compile(r"\]\([^)]*bibliography\.md|https?://")
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*(?=[-*|]|\d+\.\s)|\n\s*\n")


def value(match):
    """Return the number that a match of DECIMAL or NUMBER writes."""
    power = match["e"] or match["caret"] or (match["raised"] or "0").translate(RAISED)
    number = Decimal(match["digits"]) * Decimal(10) ** int(power.replace("−", "-"))
    return -number if match["sign"] else number


def text_of_output(output):
    """Return what an output says in words; figures say nothing here."""
    data = output.get("data", {})
    parts = [output.get("text", ""), *(data.get(kind, "") for kind in ("text/plain", "text/markdown", "text/latex"))]
    return "\n".join([*parts, re.sub(r"<[^>]*>", " ", data.get("text/html", ""))])


def shown(notebook):
    """Return every number that the code or a text output of the notebook shows."""
    texts = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts.append(re.sub(r"#.*", "", cell.source))
            texts.extend(text_of_output(output) for output in cell.outputs)
    return {value(match) for text in texts for match in NUMBER.finditer(text)}


def decimals(text):
    """Yield each decimal that stands in prose as (as written, value), cited ones and versions left out."""
    for sentence in SENTENCE.split(text):
        if CITATION.search(sentence):
            continue
        for match in DECIMAL.finditer(VERSION.sub("", ADDRESS.sub("", sentence))):
            yield match[0].strip(), value(match)


def with_roundings(numbers, places=(1, 2, 3)):
    """Return the numbers, and each as a figure may print it; a five at the end, itself rounded, may go either way."""
    ways = [(Decimal(1).scaleb(-place), way) for place in places for way in (ROUND_HALF_UP, ROUND_HALF_DOWN)]
    return {*numbers} | {number.quantize(*way) for number in numbers if abs(number) < 10**12 for way in ways}


def unsupported(text, numbers, cited=()):
    """Return the decimals of a text that are neither among `numbers` nor cited."""
    either_sign = {abs(number) for number in numbers}
    allowed = {Decimal(number.replace("−", "-")) for number in cited}
    return [
        written
        for written, number in decimals(text)
        if number not in (numbers if number < 0 else either_sign) and number not in allowed
    ]
