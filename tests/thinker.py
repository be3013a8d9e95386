"""Two tiny models that reason before they answer: between two marks, and in channels."""

from caller import scripted

# Shows what it reads of earlier reasoning, and begins or closes the reasoning where it is asked to.
TEMPLATE = (
    "{# </think> <tool_call> #}{{ tools | length if tools }}{% for m in messages %}<|user|>{{ m.reasoning_content }}|"
    "{{ m.content }}{% endfor %}<|assistant|>{{ script }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
THOUGHT, ANSWER = "Hm, 7?", "It is 7."
PIECES = {
    "<|assistant|>": ["<think>", "\nHm, ", "7?\n", "</think>", "\n\nIt is", " 7."],
    "a": ["<tool_call>", '{"name": "look"}</tool_call>'],
}
THINKER = scripted(TEMPLATE, PIECES, special=[])

CHANNELS = (
    "{# <|channel|> <|message|> #}{{ tools | length if tools }}{% for m in messages %}<|user|>{{ m.thinking }}|"
    "{{ m.content }}{% endfor %}<|start|>assistant"
)
MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"]
CALL = [
    "<|channel|>",
    "commentary to=functions.look ",
    "<|constrain|>",
    "json",
    "<|message|>",
    '{"at": "sea"}',
    "<|call|>",
]
CHANNELED = scripted(CHANNELS, {"t": CALL, "Z": ["<|start|>", "<|end|>", "<|return|>"]}, special=MARKS)
