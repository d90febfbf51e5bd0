#!/usr/bin/env python3
"""Makes the golden files of the tokenizer tests with the reference implementations, or compares with them.

    python3 make_golden_tokens.py DIR             write DIR/*
    python3 make_golden_tokens.py --check DIR     compute again and compare with the files in DIR
    python3 make_golden_tokens.py --load MADE DIR encode DIR's cases by MADE/gpt2 and MADE/llama3, which dtrain.h saved

The committed files were made with tokenizers 0.20.3 (its regular expressions follow Unicode 14.0) and checked against
tiktoken 0.14.0 (pip install tokenizers==0.20.3 tiktoken==0.14.0). All text is made here; the vocabularies are trained
on it by the reference's own trainer.

    train.txt       the text
    gpt2.json       byte-level BPE with the rule of GPT-2, without special tokens; minimal count of a pair: 2
    llama3.json     with the rule of Llama 3, ignore_merges, special tokens and added tokens that are not
    cases.txt       lines "KIND SPECIAL HEX: IDS": the text in hexadecimal, its ids; KIND gpt2 or llama3; special
                    tokens are looked for (1) or text (0). First a line "classes SHA256": of one character '0' to '3' per
                    code point (other, letter, number, white space), surrogates '0', by the reference's \\p{L} \\p{N} \\s
"""
import argparse
import hashlib
import json
import os
import random
import sys

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"""
          r"""\s*[\r\n]+|\s+(?!\S)|\s+""")
END = "<|endoftext|>"
SPECIAL = ["<|begin|>", END, "<|end|>", "<|end|>>", "<|a b|>", "<|\u00e9|>"]
ADDED = ["[tool]", "[tool]x", "qu"]
WORDS = {
    "en": "the a of and to in lamp boat basket letter clock violin kettle ladder map don't it's we'll I'm they've "
          "you're he'd old small heavy broken quiet bright when where nobody carried mended painted behind under",
    "de": "der die das und nicht schön grün über Straße Mühle Bäcker größer läuft",
    "ru": "и в не на я быть он с что а по это она этот к но они мы весь",
    "el": "και το να του η της με που για δεν την είναι",
    "zh": "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年",
    "ja": "これは本です私たち東京カタカナひらがな",
    "ar": "من في على إلى هذا كان التي الذي ما لا",
    "hi": "है के में की यह और से का को नमस्ते",
    "num": "1 12 123 1234 12345 3.14 2026-11-21 １２３ ٣٤ Ⅻ ½ 100,000",
    "sym": "!!! ... -- === ++ -> <= {} [] () #include @home 50% $5 € \u2014 \u201cquoted\u201d \U0001f600 "
           "\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 n\u0303",
}


def make_text(seed, words):
    pick = random.Random(seed)
    parts = []
    for _ in range(words):
        kind = pick.choice(["en"] * 12 + ["num", "sym", "de", "ru", "el", "zh", "ja", "ar", "hi"])
        word = pick.choice(list(WORDS[kind]) if kind in ("zh",) else WORDS[kind].split(" "))
        parts.append(word)
        parts.append(pick.choice([" "] * 14 + ["\n", "\n\n", ", ", ". ", "\r\n", "\t", "  ", "   \n  ", "\u00a0", ""]))
    return "".join(parts)


def nasty():
    """Strings on which implementations differ."""
    texts = ["", " ", "  ", "   ", "a", " a", "  a", "   a", "a ", "a  ", "\n", "\n\n", " \n", "\n ", " \n a", "\n\na",
             "a\n", "a\nb", "a \nb", "a\n b", "a\n\n  b", "\t", "\ta", "\t\ta", " \ta", "\t a", "a\t\tb", "\r\n", "a\r\nb",
             "a\r\n\r\nb", " \r\n \r\n b", "a.\r\nb", "a.\n\n\nb", "a!!\n b", "...\n\n", "... \n", "?!\r", " .\n.", " . . .",
             "don't", "DON'T", "Don'T", "it's", "IT'S", "we'll", "WE'LL", "We'Ll", "I'm", "I'M", "they've", "THEY'VE",
             "you're", "YOU'RE", "he'd", "HE'D", "'s", "'S", " 's", "''s", "'sa", "'lla", "'l", "'", "' s", "a'", "x'\u017f",
             "'\u017fx", "rock'n'roll", "'tis", "o'clock", "'re're", "'RE", "'rE", "'Ve", "\u2019s it\u2019s",
             "1", "12", "123", "1234", "12345", "123456", " 1", " 12", " 1234", "  1234", "a1", "1a", "a 1b2 33c", "1.5",
             "1,000,000", "$100", "-1", "\uff11\uff12\uff13\uff14", "\u0663\u0664", "\u2167\u00bd\u2460", "x\u00b2", "1\u0301",
             "\u4f60\u597d", "\u4f60\u597d\uff0c\u4e16\u754c\u3002", " \u4f60 \u597d", "\u3053\u3093\u306b\u3061\u306f",
             "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u6771\u4eac\u30bf\u30ef\u30fc", "\u3000\u5168\u89d2\u3000",
             "\U0001f600", "a\U0001f600b", " \U0001f600\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
             "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "e\u0301", "\u0301", " \u0301a", "a\u0301\u0302b",
             "n\u0303o", "\u1e9b\u0323", "\u0915\u094d\u0937\u093f", "\u0e01\u0e33\u0e25\u0e31\u0e07", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
             "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", "\u202babc\u202c", "\u200fa\u200e",
             "\u0627\u0644\u0633\u0651\u0644\u0627\u0645", "a\u200bb", "a\u00adb", "\ufeffa", "a\u00a0b", "\u00a0\u00a0a",
             "a\u2003b", "\u2028a\u2029", "\u0085a", "a\x0bb\x0cc", "\x00", "a\x00b", "\x00\x01\x02\x1f\x7f", "\x1c a",
             "\u180ea", "\u1680a", "\u202f1", "_", "__init__", "snake_case", "a_1", "C++", "#include <x.h>", "x->y", "a==b",
             "http://a.b/c?d=e&f", "me@x.org", "((()))", "{\"a\": [1, 2]}", "\"quoted\"", "\\n", "a\\b", "--\n--", "==\r\n\r\n==",
             "    if (x) {\n        return 1;\n    }\n", "\tx\n\t\ty\n", "a   b    c     d", "a \t b", "a\n\n\n\n\nb", " " * 40 + "x",
             "\n" * 40 + "x", "x" * 300, "ab" * 200, "12" * 50, "!" * 100, "\u00e9" * 50, "\U0001f600" * 30, "the " * 60,
             "lamplamplamp basketletter", "thethethe", " the  the   the", "\ud7ff\ue000\uffff\U00010000\U0010ffff",
             "\u0378\u0379", "\u01c5\u02b0\u00aa\u00ba", "\U0001d7d8\U0001d400", "\U00020000\U0002a6df", "\u3400\u4dbf\u9fff",
             END, "a" + END + "b", "<|begin|>" + END, "<|endoftext|", "<|<|end|>", "<|end|>>", "<|end|>>>", "<|end|><|a b|>",
             " <|a b|> ", "<|\u00e9|>", "[tool]", "[tool]x", "a[tool]xy", "[tool", "quick", "the quiet", "<|end|>qu[tool]\n",
             "\n<|end|>\n", "  <|end|>  x", "1<|end|>2", "'<|end|>s"]
    pick = random.Random(5)
    pool = [" ", " ", "  ", "\n", "\r\n", "\t", "'", "'s", "'LL", ".", "!?", "1", "23", "\u0663", "a", "Bc", "the", "\u00e9",
            "e\u0301", "\u4e2d", "\u0639", "\U0001f600", "\u200d", "\u00a0", "\u3000", "_", "<|end|>", "[tool]", "qu", "\x00"]
    for n in range(140):
        texts.append("".join(pick.choice(pool) for _ in range(pick.randint(2, 14))))
    ranges = [(0, 0x250), (0x250, 0x3000), (0x3000, 0xd800), (0xe000, 0x30000)]
    import unicodedata
    for n in range(60):
        chars = [chr(pick.randrange(*pick.choice(ranges))) for _ in range(12)]
        texts.append("".join(c for c in chars if unicodedata.category(c) != "Cn"))  # newer references know more
    return texts


def train(text, rule, vocabulary, special):
    t = Tokenizer(models.BPE(ignore_merges=rule == LLAMA3))
    if rule == GPT2:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocabulary, min_frequency=2, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def probe(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [0xd800 <= c < 0xe000 or len(split.pre_tokenize_str("~" + chr(c))) for c in range(0x110000)]


def classes():
    letter, number, space = probe(r"\p{L}"), probe(r"\p{N}"), probe(r"\s")
    text = "".join("1" if letter[c] == 2 else "2" if number[c] == 2 else "3" if space[c] == 2 else "0"
                   for c in range(0x110000))
    return hashlib.sha256(text.encode()).hexdigest()


def byte_of():
    """The byte that each character of the alphabet spells."""
    plain = [b for b in range(256) if 33 <= b < 127 or 161 <= b < 173 or 174 <= b < 256]
    rest = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(rest)}}


def second_opinion(tokenizer, pattern):
    """The same vocabulary in tiktoken, which ranks merges by ids."""
    table = byte_of()
    ranks = {bytes(table[c] for c in token): i for token, i in tokenizer.get_vocab(False).items()
             if all(c in table for c in token) and token not in SPECIAL}
    return tiktoken.Encoding("check", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def make():
    text = make_text(1, 6000)
    gpt2 = train(text, GPT2, 700, [])
    llama3 = train(text, LLAMA3, 640, [])
    llama3.add_special_tokens(SPECIAL)
    llama3.add_tokens([AddedToken(a, normalized=a != "[tool]x") for a in ADDED])
    files = {"train.txt": text, "gpt2.json": gpt2.to_str(), "llama3.json": llama3.to_str()}
    opinion = {"gpt2": second_opinion(gpt2, GPT2), "llama3": second_opinion(llama3, LLAMA3)}
    lines = ["classes " + classes()]
    for name, t in (("gpt2", gpt2), ("llama3", llama3)):
        for s in nasty():
            for special in (0, 1):
                t.encode_special_tokens = not special
                ids = t.encode(s, add_special_tokens=False).ids
                if not special and name in opinion and not any(a in s for a in ADDED):
                    assert opinion[name].encode_ordinary(s) == ids, (name, s)
                if special and "<|" not in s:
                    continue
                lines.append("%s %d %s: %s" % (name, special, s.encode().hex(), " ".join(map(str, ids))))
    files["cases.txt"] = "\n".join(lines) + "\n"
    return files


def load(made, folder):
    """What dtrain.h trained on train.txt and saved must load here, and encode as dtrain.h noted in MADE/cases.txt."""
    bad = total = 0
    kinds = {name: Tokenizer.from_file(os.path.join(made, name, "tokenizer.json")) for name in ("gpt2", "llama3")}
    for line in open(os.path.join(made, "cases.txt")):
        head, ids = line.rstrip("\n").split(":")
        name, special, text = (head.split(" ") + [""])[:3]
        t = kinds[name]
        t.encode_special_tokens = special == "0"
        text = bytes.fromhex(text).decode()
        got = t.encode(text, add_special_tokens=False).ids
        total += 1
        if got != [int(i) for i in ids.split()] or t.decode(got, skip_special_tokens=False) != text:
            bad += 1
            if bad < 5:
                print("differs:", line, got)
    print("%d of %d cases differ" % (bad, total))
    return bad != 0 or total < 100


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--check", action="store_true")
    options.add_argument("--load", metavar="MADE")
    options.add_argument("dir")
    options = options.parse_args()
    if options.load:
        return load(options.load, options.dir)
    for name, text in make().items():
        path = os.path.join(options.dir, name)
        if options.check:
            if open(path, newline="", encoding="utf-8").read() != text:
                print("differs:", path)
                return 1
        else:
            with open(path, "w", newline="", encoding="utf-8") as f:
                f.write(text)
    print("equal" if options.check else "written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
