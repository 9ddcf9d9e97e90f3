from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, kind


def block_order():
    """The lines of one block, in the order in which a consumer does them."""
    return [
        "issue dp",
        "wait for dp",
        "hand over ds",
        "issue dk",
        "issue s′",
        "meet",
        "issue dq",
        "wait for dk, s′",
        "release q, do",
        "p′",
        "issue dv′",
        "wait for dq",
        "add dq",
        "wait for dv′",
    ]


RIGHT = ""
LINES = block_order()
NEEDED = {  # line -> what must be done before: a line, or a matmul that was waited for
    "hand over ds": "dp", "issue dk": "hand over ds", "meet": "hand over ds", "issue dq": "meet", "release q, do": "dk", "p′": "s′",
    "issue dv′": "p′", "add dq": "dq",
}  # fmt: skip


def played(order):
    """What comes of an order: RIGHT, or the first line that can't stand where it does."""
    issued, under_way, done = [], [], []
    for place, line in enumerate(order):
        if (before := NEEDED.get(line)) and before not in done:
            return f"at “{line}”, {f'“{before}” has not come' if before in LINES else f'{before} has not been waited for'}"
        if line.startswith("issue "):
            issued.append(line.removeprefix("issue "))
            under_way.append(issued[-1])
        elif line.startswith("wait for "):
            names = line.removeprefix("wait for ").split(", ")
            if missing := [name for name in names if name not in issued]:
                return f"at “{line}”, {missing[0]} has not been issued"
            last = max(issued.index(name) for name in names)
            under_way = [name for name in under_way if issued.index(name) > last]  # matmuls end in the order of their issue
            done += names
        if line == "meet" and (missing := [name for name in ("dk", "s′") if name not in issued]):
            return f"at “meet”, {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not issued, and could run meanwhile"
        if line == "meet" and not {"dk", "s′"} <= set(under_way):
            return f"at “meet”, {' and '.join(under_way) or 'no matmul'} is under way, where two can be"
        if "meet" in done and not under_way and place + 1 < len(order):
            last = not any(one.startswith("wait for ") for one in order[place + 1 :])
            when = "comes after the last wait, with no matmul beside it" if last else f"comes after “{line}”, when no matmul is under way"
            return f"“{order[place + 1]}” {when}"
        done.append(line)
    for line, before in (("hand over ds", "wait for dp"), ("release q, do", "wait for dk, s′")):
        between = order[order.index(before) + 1 : order.index(line)]
        if late := [one for one in between if not one.startswith("issue ") or one == "issue s′"]:  # s′ waits for the next q
            return f"“{late[0]}” comes between “{before}” and “{line}”, which is possible at once, and another role waits for it"
    return RIGHT


@adapting
def adapt(answer):
    order = answer()
    if not isinstance(order, list | tuple) or not all(isinstance(line, str) for line in order):
        raise Wrong(f"returns {kind(order)}, want a list of the lines")
    order = [line.replace("'", "′").replace("’", "′") for line in order]  # the page's prime, where a keyboard gave another sign
    if sorted(order) != sorted(LINES):
        line = min(set(order) ^ set(LINES) or {line for line in order if order.count(line) > 1})
        raise Wrong(f"“{line}” stands {order.count(line)} times, where each of the {len(LINES)} lines comes once, and no other")
    return played(order)


def moved(line, after):
    """The change of the solution that moves a line to behind another."""
    return [(f'        "{line}",\n', ""), (f'        "{after}",\n', f'        "{after}",\n        "{line}",\n')]


MISTAKES = {
    "matmuls end in their order of issue, so the wait for dp ends s′, too, which stands before it": [
        ('        "issue s′",\n', ""), ('        "issue dp",\n', '        "issue s′",\n        "issue dp",\n')],
    "dk and s′ need nothing of the other consumer, so both can run until its ds is there": moved("meet", "hand over ds"),
    "q and do are free once dk is done, and the producer waits for them": moved("release q, do", "p′"),
    "issue the next matmul before you wait for the last: a wait leaves in flight what was issued later": moved("wait for dq", "release q, do"),
    "dq = ds k reads the other consumer's rows, too": moved("meet", "issue dq"),
    "dk reads q, and the producer would load over it": moved("release q, do", "hand over ds"),
    "the other consumer waits for your rows of ds as you do for its rows, and neither would go on": moved("meet", "wait for dp"),
}  # fmt: skip
EXERCISE = Exercise(
    task="Write block_order(), which returns the 14 lines of one block in an order in which a matmul is under way from the meeting on.",
    hints=(
        "Begin with what needs what: ds takes dp, dk takes ds, dq takes both consumers' ds, p′ takes s′, dv′ takes p′. Which two matmuls need "
        "nothing of the other consumer, and can run while you wait for it?",
        "Matmuls end in the order in which they were issued. So a wait for dk and s′ leaves dq in flight, if dq was issued after them. What "
        "can the warps compute under dq, and what is then under way while dq is added to memory?",
        "issue dp, wait for dp, hand over ds, issue dk and s′, meet, issue dq, wait for dk and s′; then release, p′, issue dv′. What is left is "
        "what becomes of dq, and the last wait.",
    ),
    solution=block_order,
    reasoning="dk and s′ cover the meeting, dq covers p′, dv′ covers the adding of dq. Only dp and ds of a block have nothing beside them: there the "
    "other consumer's matmuls can run.",
    inputs=lambda: [case(on="one block")],
    truth=lambda: RIGHT,
    rule="each line comes after what it needs, and from the meeting on a matmul is always under way",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
