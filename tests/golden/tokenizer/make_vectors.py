#!/usr/bin/env python3
"""Writes the tokenizer vectors beside this script: one small byte-level BPE per pre-tokenizer family.

Oracle: PyPI tokenizers (0.23.3 when the files were made). The vocabularies are trained on the texts
below, so that merges of every script occur. Run again only to add cases; the ids of old ones must
not change for the same version of the oracle.
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), byte_level(False)]
    )


FAMILIES = {
    "gpt-2": byte_level(True),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(True)]
    ),
    "llama-bpe": split(LLAMA),
    "qwen2": split(QWEN),
}

TEXTS = [
    "Hello, world! The quick brown fox jumps over the lazy dog; the dog doesn't care.",
    "I'm sure they'll say we've done what he'd do. IT'S, I'LL, WE'RE: upper-case endings.",
    "  two spaces\n\n\n   three after newlines\t\ttabs \t mixed   \n",
    "trailing spaces   ",
    "\r\nCRLF\r\n\r\nlines\rold mac\n\r\n",
    "1234567890 12 123 1234 3.14159 1,000,000 v2.0-rc1 0xFF 007",
    "x=1;y=22;z=333;w=4444",
    "\u6f22\u5b57\u3068\u304b\u306a\u3001\u65e5\u672c\u8a9e\u3002\u4e2d\u6587\u6d4b\u8bd5\uff01\u5168\u89d2\uff11\uff12\uff13",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u041a\u0430\u043a \u0434\u0435\u043b\u0430?",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0661\u0662\u0663",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902 \u092a\u093e\u0920",
    "\u0e44\u0e17\u0e22\u0e20\u0e32\u0e29\u0e32",
    "\U0001f642\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466\U0001f3f3\ufe0f\u200d\U0001f308 emoji \U0001f44d\U0001f3fd",
    "e\u0301 combining vs \u00e9; a\u0308\u0323b n\u0303o",
    "\u00a0nbsp\u00a0\u00a0two\u3000ideographic\u2003em\u2028line\u2029para\u0085nel",
    "a\u180eb \u180e c\u180e\u180e",  # Mongolian vowel separator: no White_Space
    "zero\u200bwidth\u2060joiner\ufeffbom",
    "control\x00\x01\x02\x1b\x7f chars \x1c\x1d\x1e\x1f \x0b\x0c vt ff",
    "\U0001d54f\U0001d4b4\U0001d4cf math \u00bd \u2460 \u2163 \u00b2",
    "def f(x):\n    return x**2  # comment\n\nclass A:\n\tpass\n",
    "http://example.com/path?query=1&b=2#frag <not a special> {\"json\": [1, 2]}",
    "can\u2019t won\u2019t 'tis ''s 's s' \u017f'\u017f",
    "\u00dcn\u00efc\u00f6d\u00e9 \u0141\u00d3D\u0179 \u00dftra\u00dfe \u01c5 \u02b0\u02b2",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...---===***///\\\\\\\n!!!\r\n(((\n\n)))",
    "",
    " ",
    "\n",
    "   \n   \n  x",
    "\u0301\u0302 leading marks \u0903",
]
SPECIALS = ["<|begin|>", "<|im_end|>", "<|im_end|>>", "<|im_end", "<think>"]
SPECIAL_TEXTS = [
    "<|begin|>Hello<|im_end|>",
    "a<|im_end|>>b <|im_end|> > <|im_end <|im_en",
    "  <|begin|>  <|begin|><|begin|>\n",
    "[tool] x [tool][tool]y<think>z</think>",
    "<<|begin|>>",
    "\u65e5<|im_end|>\u672c",
]
USER_DEFINED = ["[tool]", "\t\t"]

ALPHABET = (
    list("abzABZ") + ["'s", "'LL", "'re", "'", "\u2019", "\u00e9", "\u0301", "\u6f22", "\u0661", "\u00bd", "1", "23", "7"]
    + [" ", "  ", "\n", "\r\n", "\r", "\t", "\u00a0", "\u3000", "\u180e", "\u200b", "\u2028", "\x0b", "\x85", "\x1c"]
    + list(".,!?-_#<|>{}$+^`~\"") + ["\U0001f642", "\u200d", "\ufe0f", "\u0902", "\u0e32", "\x00", "\u01c5", "\u2163"]
)


def random_texts(count, seed):
    rng = random.Random(seed)
    return ["".join(rng.choices(ALPHABET, k=rng.randint(1, 24))) for _ in range(count)]


def train(pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 500,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    return json.loads(tokenizer.to_str())["model"]


def build(family, pre_tokenizer):
    model = train(pre_tokenizer)
    merges = [tuple(m) for m in model["merges"]]
    if family == "llama-bpe":
        # Pieces that no merge makes any more: only "take a whole piece from the vocabulary" does.
        merges = merges[:-60]
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=merges, ignore_merges=family == "llama-bpe")
    )
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIALS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in USER_DEFINED])
    return tokenizer, merges


def vectors(family, pre_tokenizer):
    tokenizer, merges = build(family, pre_tokenizer)
    pieces = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    types = [3 if p in SPECIALS else 4 if p in USER_DEFINED else 1 for p in pieces]
    cases = []
    for parse_special in (True, False):
        tokenizer.encode_special_tokens = not parse_special
        for text in TEXTS + SPECIAL_TEXTS + random_texts(60, 7):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "parse_special": parse_special, "ids": ids})
    splits = []
    for text in random_texts(200, 11):
        spans = [span for _, span in pre_tokenizer.pre_tokenize_str(text)]
        splits.append({"text": text, "pieces": [text[a:b] for a, b in spans]})
        assert "".join(splits[-1]["pieces"]) == text
    return {
        "pre": family,
        "pieces": pieces,
        "types": types,
        "merges": [" ".join(m) for m in merges],
        "cases": cases,
        "splits": splits,
    }


def main():
    for family, pre_tokenizer in FAMILIES.items():
        path = HERE / f"{family}.json"
        text = json.dumps(vectors(family, pre_tokenizer), separators=(",", ":"))
        path.write_text(text.replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    main()
