"""Secant method for the parameter ``at``: where the line through the last two guesses is 0.

A function is told every result of its group so far, in the order of the jobs' indices, whatever
order they ended in; it returns a value, a list of values, or None.
"""


def next_guess(group, index, metrics, results):
    if len(results) < 2:
        return [1.0, 2.0]
    before, last = results[-2:]
    if abs(last["f"]) < 1e-9:
        return None
    slope = (last["f"] - before["f"]) / (last["E"] - before["E"])
    return last["E"] - last["f"] / slope
