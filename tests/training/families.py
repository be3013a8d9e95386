"""Small tokenizers of the families that chat models come from, each with its chat template."""

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

TEXT = ["Hello there, how are you? I am well. What is 2 + 3? It is 5, naïve reader: 2 + 3 = 5."]

VICUNA = (
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% set messages = messages[1:] %}"
    "{% else %}A chat between a curious user and an assistant.{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ ' USER: ' + message['content'] }}"
    "{% else %}{{ ' ASSISTANT: ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
    "message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{% endif %}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN3 = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<think>\\n\\n</think>\\n\\n' if loop.last else '' }}"
    "{{ message['content'].split('</think>')[-1].lstrip('\\n') }}"
    "{% else %}{{ message['content'] }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
OURS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' }}"
    "{% generation %}{{ message['content'] | trim + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ '<|user|>' + message['content'] | trim + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def byte_level(bos: str | None, eos: str, specials: list[str], template: str) -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE, as Llama 3, Qwen and the shipped model have it."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        TEXT, _trainer([*filter(None, [bos]), eos, *specials], pre_tokenizers.ByteLevel.alphabet())
    )
    return _wrapped(core, bos, eos, specials, template)


def sentencepiece(template: str) -> transformers.PreTrainedTokenizerFast:
    """BPE with visible spaces, one of them before every text, and bytes for rare characters, as Llama 2 has it."""
    core = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    core.train_from_iterator(TEXT, _trainer(["<unk>", "<s>", "</s>", *bytes_], []))
    return _wrapped(core, "<s>", "</s>", [], template)


def _trainer(specials: list[str], alphabet: list[str]) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=len(specials) + len(alphabet) + 40,
        special_tokens=specials,
        initial_alphabet=alphabet,
        show_progress=False,
    )


def _wrapped(core, bos, eos, specials, template) -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=bos,
        eos_token=eos,
        additional_special_tokens=specials,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def family(name: str) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer of a family, by name."""
    if name in ("vicuna", "llama-2"):
        return sentencepiece({"vicuna": VICUNA, "llama-2": LLAMA2}[name])
    headers = ["<|start_header_id|>", "<|end_header_id|>"]
    return {
        "llama-3": lambda: byte_level("<|begin_of_text|>", "<|eot_id|>", headers, LLAMA3),
        "chatml": lambda: byte_level(None, "<|im_end|>", ["<|im_start|>"], CHATML),
        "qwen-3": lambda: byte_level(None, "<|im_end|>", ["<|im_start|>"], QWEN3),
        "ours": lambda: byte_level("<|bos|>", "<|end|>", ["<|user|>", "<|assistant|>"], OURS),
    }[name]()


def words(vocab_size: int) -> transformers.PreTrainedTokenizerFast:
    """A word is a token: four special ones, then w4, w5, ..; with our template."""
    specials = ["<|bos|>", "<|end|>", "<|user|>", "<|assistant|>"]
    core = tokenizers.Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*specials, *(f"w{i}" for i in range(4, vocab_size))])})
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrapped(core, "<|bos|>", "<|end|>", specials[2:], OURS)
