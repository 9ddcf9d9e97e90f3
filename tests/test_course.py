"""What must hold of the course as a whole: one thread, equations that exist, a map and a glossary that lead there, lines that fit a page."""

import ast
import io
import re
import tokenize
from pathlib import Path

import notebook_rules as rules
import pytest

from fa_tutorial.exercises import catalogue
from fa_tutorial.source import WIDTH

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = {int(path.name[:2]): rules.load(path) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
CHAPTER_OF = {path.name: int(path.name[:2]) for path in (ROOT / "notebooks").glob("*.ipynb")}
TAGS = {chapter: rules.equation_tags(notebook) for chapter, notebook in NOTEBOOKS.items()}
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def section(notebook: dict, title: str) -> str:
    """The Markdown cell that begins with `## title`."""
    [cell] = [cell for cell in rules.markdown_cells(notebook) if cell["source"].startswith(f"## {title}\n")]
    return cell["source"]


def table_rows(markdown: str) -> list[list[str]]:
    """The rows of the tables in a text, without heads and rules."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    ruled = [number for number, row in enumerate(cells) if all(set(cell) <= {"-"} and cell for cell in row)]
    heads = {number - 1 for number in ruled} | set(ruled)
    return [row for number, row in enumerate(cells) if number not in heads]


# ---------------------------------------------------------------- the map and the glossary

MAP, GLOSSARY = section(NOTEBOOKS[0], "Map of the course"), section(NOTEBOOKS[0], "Glossary")
SHORT = 2  # names up to this length are symbols, in which a capital is another letter


def glossary_faults(glossary: str, texts: dict[str, str]) -> list[str]:
    """Each line of a glossary that links to no notebook, or to one in which a name of it does not occur. texts: those of the notebooks."""
    faults = []
    for names, meaning, link in table_rows(glossary):
        _, target = LINK.fullmatch(link).groups()
        if not meaning:
            faults.append(f"{names} has no meaning")
        if target not in texts:
            faults.append(f"{names} links to {target}, which is no notebook")
            continue
        for name in names.replace("`", "").split(", "):
            flags = re.IGNORECASE if len(name) > SHORT else 0
            if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", texts[target], flags):
                faults.append(f"{name} does not occur in {target}")
    return faults


def notebook_texts() -> dict[str, str]:
    """The text and the code of each notebook, by its file's name, without the glossary."""
    return {
        name: "\n".join(cell["source"] for cell in NOTEBOOKS[chapter]["cells"] if cell["source"] != GLOSSARY)
        for name, chapter in CHAPTER_OF.items()
    }


def test_glossary_leads_to_what_it_names():
    assert glossary_faults(GLOSSARY, notebook_texts()) == []


def test_glossary_is_whole():
    names = {name.strip("` ") for row in table_rows(GLOSSARY) for name in row[0].split(",")}
    notation = (
        "q k v o do dq dk dv s p m l acc lse delta alpha B H_q H_k S_q S_k D BLOCK_M BLOCK_N q_ptr stride_qs offs_m offs_n offs_d mask"
    )
    assert set(notation.split()) <= names
    for symbols in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", NOTEBOOKS[0]["cells"][4]["source"], re.MULTILINE):
        assert {symbol.strip("`") for symbol in symbols.split(", ")} <= names, "chapter 0's own table of symbols"
    terms = [row[0] for row in table_rows(GLOSSARY.partition("### Terms")[2])]
    assert len(terms) == len(set(terms)) >= 80


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("| `m` | running maximum | [1](01.ipynb) |", None),
        ("| `m`, `z` | running maximum | [1](01.ipynb) |", "z does not occur in 01.ipynb"),
        ("| `M` | running maximum | [1](01.ipynb) |", "M does not occur in 01.ipynb"),
        ("| Running Maximum | m | [1](01.ipynb) |", None),
        ("| max | m | [1](01.ipynb) |", "max does not occur in 01.ipynb"),
        ("| `m` | running maximum | [2](02.ipynb) |", "`m` links to 02.ipynb, which is no notebook"),
        ("| `m` | | [1](01.ipynb) |", "`m` has no meaning"),
    ],
)
def test_glossary_that_leads_astray(line, fault):
    glossary = f"| symbol | meaning | explained in |\n|---|---|---|\n{line}"
    assert glossary_faults(glossary, {"01.ipynb": "the running maximum m"}) == ([fault] if fault else [])


def test_map_has_every_chapter_with_its_module_and_exercises():
    rows = table_rows(MAP)
    assert [LINK.fullmatch(row[1])[2] for row in rows] == sorted(CHAPTER_OF)
    for _, chapter, question, _, modules, exercises in rows:
        text, target = LINK.fullmatch(chapter).groups()
        assert NOTEBOOKS[CHAPTER_OF[target]]["cells"][0]["source"].startswith(f"# {text}\n")
        assert question.endswith("?")
        missing = [name for name in re.findall(r"`(\w+(?:\.py|/))`", modules) if not (ROOT / "fa_tutorial" / name).exists()]
        assert missing == []
        if exercises:
            ids = [exercise.id for exercise in catalogue.chapter_exercises(CHAPTER_OF[target])]
            assert exercises == f"{ids[0]} to {ids[-1]}"


# ---------------------------------------------------------------- what a page can show


def wide_lines(notebook: dict) -> list[str]:
    """The cells with a line of code, or of what it prints, that a page of JupyterLab clips, or breaks inside a word."""
    cells = rules.code_cells(notebook)
    texts = {rules.name_of(notebook, cell): "\n".join([cell["source"], *rules.output_texts(cell)]) for cell in cells}
    return [name for name, text in texts.items() if any(len(line) > WIDTH for line in text.splitlines())]


@pytest.mark.parametrize("chapter", range(len(NOTEBOOKS)))
def test_no_line_is_wider_than_a_page(chapter):
    assert wide_lines(NOTEBOOKS[chapter]) == []


def test_lines_that_are_too_wide_are_found():
    def cell(source: str, shown: str) -> dict:
        return {
            "cell_type": "code",
            "metadata": {},
            "source": source,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": shown}],
        }

    wide = "x" * (WIDTH + 1)
    cells = [cell("print(1)", "1\n"), cell(f"y = 1\n{wide} = 1", ""), cell("print(2)", wide)]
    assert wide_lines({"cells": cells}) == ["cell 1 (y = 1)", "cell 2 (print(2))"]


# ---------------------------------------------------------------- the thread

COMMON_WORDS = 6  # so many words in a row are the same question


def questions_left_open(notebook: dict) -> list[str]:
    """The questions in what a chapter says of what comes next."""
    [cell] = [cell for cell in rules.markdown_cells(notebook) if cell["source"].startswith("**What comes next.**")]
    return [sentence for sentence in re.split(r"(?<=[.?])\s+", cell["source"]) if sentence.endswith("?")]


def common_words(one: str, other: str) -> int:
    """The length of the longest run of words that two texts share, whatever stands between the words."""
    words = [re.findall(r"\w+", text.lower()) for text in (one, other)]
    runs = {tuple(words[0][start:end]) for start in range(len(words[0])) for end in range(start + 1, len(words[0]) + 1)}
    return max((end - start for start in range(len(words[1])) for end in range(start + 1, len(words[1]) + 1)
                if tuple(words[1][start:end]) in runs), default=0)  # fmt: skip


@pytest.mark.parametrize("chapter", range(len(NOTEBOOKS) - 1))
def test_a_chapter_takes_up_a_question_that_the_last_one_left_open(chapter):
    opening = NOTEBOOKS[chapter + 1]["cells"][0]["source"]
    assert max(common_words(question, opening) for question in questions_left_open(NOTEBOOKS[chapter])) >= COMMON_WORDS


def test_words_that_two_texts_share():
    assert common_words("What is the address of k[b, h]?", "So: *what is the address* of q?") == 5
    assert common_words("one", "two") == 0


# ---------------------------------------------------------------- equations

PACKAGE = sorted((ROOT / "fa_tutorial").rglob("*.py"))
DRAWINGS = sorted((ROOT / "images" / "draw").glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
ABOUT_EQUATIONS = {"notebook_rules.py", "test_notebooks.py", "test_course.py"}  # these make numbers up


def texts_of_code(source: str) -> str:
    """The comments, the docstrings and the other strings of Python code, those parts of f-strings that are written out among them."""
    comments = [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT]
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join([*comments, *strings])


@pytest.mark.parametrize(
    "path",
    [path for path in (*PACKAGE, *DRAWINGS, *TESTS) if path.name not in ABOUT_EQUATIONS],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_equation_that_code_names_exists(path):
    assert rules.unknown_equations(texts_of_code(path.read_text()), TAGS) == []


@pytest.mark.parametrize("chapter", NOTEBOOKS)
def test_every_equation_that_a_notebook_s_strings_name_exists(chapter):
    cells = (
        "\n".join(line for line in cell["source"].splitlines() if line[:1] not in "!%") for cell in rules.code_cells(NOTEBOOKS[chapter])
    )
    assert rules.unknown_equations("\n".join(map(texts_of_code, cells)), TAGS) == []


def test_equations_are_found_wherever_code_names_them():
    source = '"""By (4.77)."""\nx = 1  # (4.78)\nhint = "use (4.79), or"\nfigure = f"start = {x} (4.80)"'
    found = rules.unknown_equations(texts_of_code(source), TAGS)
    assert [fault.split()[0] for fault in found] == ["(4.78)", "(4.77)", "(4.79)", "(4.80)"]
