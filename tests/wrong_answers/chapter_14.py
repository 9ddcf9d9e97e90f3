"""Chapter 14: one of two parts, an error in steps, a matrix of another size, rows for keys."""

from edits import edit

WRONG_ANSWERS = (
    edit("14.1", "a step too few", ("exponent - 3", "exponent - 1"), told="1.125"),
    edit("14.2", "values alone", ("return to_e4m3(x / of_row), scales", "return to_e4m3(x / of_row)"), told="values"),
    edit("14.2", "scales of columns", ("rows.abs().max() / 448", "rows.abs().mean() / 448"), told="448"),
    edit("14.3", "half the error", ("2.0**-4", "2.0**-5"), told="2^(e − 4)"),
    edit("14.4", "unsigned and unscaled", ("x * signs @ h / len(signs) ** 0.5", "x @ h"), told="D = 2"),
    edit("14.5", "o at once", ("return m_new, l, acc", "return m_new, l, acc / l[:, None]"), told="acc"),
    edit("14.6", "half of K at most", ("length <= a.shape[1]", "length <= a.shape[1] // 4"), told="128"),
    edit("14.7", "half as far", ("8 * (slot // 2)", "4 * (slot // 2)"), told="keys 0, 1, 8 and 9"),
)  # fmt: skip
