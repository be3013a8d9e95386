"""What does structured output cost and gain: making its automaton, tokens per second, mean acceptance length?

The same questions are answered in free text and in each form, plainly and drafted; the greedy texts are compared.

    python -m benchmarks.decode.structured --target smollm2-135m-instruct --new-tokens 96
"""

import statistics
from typing import Any

import eagle_jax
from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show

PERSON = {
    "type": "object",
    "properties": {
        **{name: {"type": "string", "maxLength": 40} for name in ("name", "city", "job")},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 4},
    },
    "required": ["name", "city", "job", "age", "hobbies"],
}
FORMS: dict[str, dict[str, Any]] = {
    "free text": {},
    "schema of a person": {"json_schema": PERSON},
    "any JSON object": {"json_schema": {"type": "object"}},
    "expression": {"regex": r"Name: [A-Z][a-z]{1,12}\nAge: [0-9]{1,2}\nJob: [a-z ]{1,30}\."},
}
ASKED = "Invent a person who lives in {} and answer in JSON, with the name, the city, the job, the age and the hobbies."
CITIES = ("Paris", "Lagos", "Kyoto", "Lima", "Oslo", "Cairo")
COLUMNS = ("form", "automaton, s", "plain, tokens/s", "drafted, tokens/s", "mean acceptance length", "same text")


def main() -> None:
    options = parser(__doc__, new_tokens=96, questions=False).parse_args()
    model = eagle_jax.load(options.target, options.head)
    asked = [[{"role": "user", "content": ASKED.format(city)}] for city in CITIES]
    rows: list[tuple[object, ...]] = []
    for name, form in FORMS.items():
        how: dict[str, Any] = {"max_new_tokens": options.new_tokens, "batch_size": 1} | form
        first = [eagle_jax.generate(model, asked[0], drafter=drafter, **how) for drafter in ("none", "eagle")]
        plain, drafted = (eagle_jax.generate(model, asked, drafter=drafter, **how) for drafter in ("none", "eagle"))
        speeds = [statistics.median(one.stats.tokens_per_second for one in results) for results in (plain, drafted)]
        tokens = sum(len(one.token_ids) - 1 for one in drafted)
        length = tokens / sum(one.stats.steps for one in drafted)
        same = [one.token_ids for one in plain] == [one.token_ids for one in drafted]
        rows.append((name, f"{first[0].stats.structured_seconds:.2f}", *speeds, length, same))
    show(f"{len(asked)} questions, {model.dtype}, greedy", COLUMNS, rows)


if __name__ == "__main__":
    begin(main)
