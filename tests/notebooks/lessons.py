"""What the teacher says in each example notebook, request by request."""

from __future__ import annotations

import json
from typing import Any

from tests.notebooks.teacher import call

__all__ = ["LESSONS"]


def _card(body: dict[str, Any]) -> str:
    """The answer to a row of the map notebook, by what the row holds: rows may be asked in any order."""
    asked = json.dumps(body["messages"][-1])
    if "Iris" in asked or "iris" in asked:
        return json.dumps({"topic": "iris flowers", "is_biology": True})
    if "Wine" in asked or "wine" in asked:
        return json.dumps({"topic": "chemistry of wines", "is_biology": False})
    return json.dumps({"topic": "prices", "is_biology": False})


LESSONS: dict[str, list[Any]] = {
    "02_sessions": [
        "It holds 178 Italian wines with 13 measurements each, and `target` says which of three growers made them.",
        "I would begin with `proline`: it spans the widest range by far, so it may tell the growers apart on its own.",
        "Which bottle is worth its price: compare `alcohol` by grower, the one column a buyer knows.",
    ],
    "03_steering": [
        [call("count_wines", grower=0), call("count_wines", grower=1), call("count_wines", grower=2)],
        "59, 71, 48",
        "Entendu. Les trois producteurs ont 59, 71 et 48 vins.",
        "Au total, cela fait 178 vins.",
    ],
    "04_tools": [
        [call("mean_of", column="bmi", sex="1"), call("mean_of", column="bmi", sex="2")],
        "The mean bmi is 26.79 for sex 2 and 26.01 for sex 1, a small difference.",
        [call("mean_of", column="bp", sex="female")],
        [call("mean_of", column="bp", sex="2")],
        "Their mean blood pressure is 98.19; the data calls the sexes 1 and 2 and does not say which is which.",
        [call("drop_column", column="s6"), call("drop_column", column="bmi")],
        "I dropped `s6`. Dropping `bmi` was not allowed, so it is still there.",
    ],
    "05_analysis": [
        [call("inspect", names=["wine"])],
        "`wine` has 178 rows and 14 columns, all numeric, and nothing is missing.",
        [
            call(
                "python",
                code="per_grower = wine.groupby('target')[['alcohol', 'proline']].mean()\nper_grower.round(1)",
            )
        ],
        "`per_grower` is ready. Grower 0 makes the strongest wines and has by far the most proline.",
        [
            call(
                "python",
                code=(
                    "import matplotlib.pyplot as plt\n"
                    "fig, ax = plt.subplots(figsize=(4, 3))\n"
                    "ax.scatter(wine['alcohol'], wine['proline'], c=wine['target'], s=12)\n"
                    "ax.set(xlabel='alcohol', ylabel='proline')\n"
                    "plt.show()"
                ),
            )
        ],
        "Two clouds stand apart: one grower is high in both, the other two overlap in proline and differ in alcohol.",
        'There is no column `grower`: the grower is in `target`. Write `wine.groupby("target")["alcohol"].mean()`.',
    ],
    "06_structured": [
        json.dumps({"name": "Wine recognition", "kind": "classification", "rows": 178, "classes": 3}),
        json.dumps(
            {
                "value": [
                    {"column": "alcohol", "low": 11.0, "high": 14.8},
                    {"column": "malic acid", "low": 0.74, "high": 5.8},
                ]
            }
        ),
        json.dumps({"name": "Iris", "kind": "classification", "rows": -1, "classes": 3}),
        json.dumps({"name": "Iris", "kind": "classification", "rows": 150, "classes": 3}),
    ],
    "07_map": [_card, _card, _card, "iris flowers"],
    "08_extensions": [
        "Four days.",
        "The middle value of the sorted data: half lies below it, half above.",
        [call("delete_rows", count=500)],
        "I may not delete more than 10 rows at once. Shall I do it in steps?",
    ],
    "09_mcp": [
        [call("units__to_kelvin", celsius=21.5)],
        "21.5 °C are 294.65 K.",
        [call("agent", persona="glossary", task="Explain kurtosis.")],
        [call("lookup", word="kurtosis")],
        "Kurtosis says how heavy the tails of a distribution are.",
        "Kurtosis says how heavy a distribution's tails are: how much of it lies far out.",
    ],
    "10_panel": ["A widget is an object in the kernel with a living picture in the page, kept in step by messages."],
    "11_ci": ["State the hypotheses, compute t from the means and spreads, compare it with the t distribution."],
}
