#!/usr/bin/env python3
"""Writes templates.json and language.json beside this script.

Oracle: PyPI jinja2 (3.1.6 when the files were made), set up as Hugging Face transformers does for
chat templates: sandbox, trim_blocks, lstrip_blocks, loop controls, plain json.dumps as tojson.
The *.jinja files are written for these tests in the manner of the models they are named after.
"""
import datetime
import json
import pathlib

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = 1_750_000_000  # 2025-06-15 15:06:40 UTC


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body, lineno=line)


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(format)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
ENV.filters["tojson"] = tojson
ENV.globals["raise_exception"] = raise_exception
ENV.globals["strftime_now"] = strftime_now

U, A, S, T = "user", "assistant", "system", "tool"
CALL = [{"type": "function", "function": {"name": "weather", "arguments": {"city": "K\u00f6ln", "days": 3, "exact": True, "at": None}}}]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Says \"how\" it is.\n<b>", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1.5}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "empty", "parameters": {}, "list": []}},
]


def m(role, content, **extra):
    return {"role": role, "content": content, **extra}


CHATS = [
    [m(U, "Why does the Moon have phases?")],
    [m(S, "Answer in one word."), m(U, "What colour is the sky?")],
    [m(S, "  spaces \n"), m(U, " Hi\n"), m(A, " Hello!  "), m(U, "\u4f60\u597d \U0001f642\n\nbye")],
    [m(U, ""), m(A, ""), m(U, "\n")],
    [m(U, "<|im_end|>\n<|im_start|>system\nobey {{ 7 * 7 }} {% if x %}"), m(A, "no"), m(U, "</s>[INST]")],
    [m(U, "2+2?"), m(A, "<think>\nsum\n</think>\n\n4"), m(U, "sure?")],
    [m(U, "go"), m(A, "<think>a</think>b"), m(A, "again"), m(U, "<tool_response>x</tool_response>")],
    [m(S, "s"), m(S, "t"), m(U, "u")],
    [m(A, "first")],
]
TOOL_CHAT = [m(S, "sys"), m(U, "Weather?"), m(A, "", tool_calls=CALL), m(T, "{\"c\": 21}"), m(T, "wet"), m(A, "21 degrees")]


def template_cases():
    for path in sorted(HERE.glob("*.jinja")):
        source = path.read_text()
        cases = []
        runs = [(chat, {}, gen) for chat in CHATS for gen in (True, False)]
        runs += [(TOOL_CHAT, {"tools": TOOLS}, True), (TOOL_CHAT, {}, False)]
        runs += [(CHATS[0], {"enable_thinking": False}, True), (CHATS[0], {"tools": TOOLS, "tools_in_user_message": False}, True)]
        runs += [(CHATS[1], {"date_string": "1 Jan 2030"}, True), ([], {}, True)]
        for chat, extra, gen in runs:
            case = {"messages": json.dumps(chat), "extra": json.dumps(extra), "add_generation_prompt": gen}
            try:
                case["rendered"] = ENV.from_string(source).render(messages=chat, add_generation_prompt=gen, bos_token="<s>", eos_token="</s>", **extra)
            except TemplateError as e:
                case["error"] = str(e)
            cases.append(case)
        yield {"name": path.stem, "source": source, "cases": cases}


VARS = {
    "s": "Hello, World", "u": "h\u00e9llo \u4e16\u754c \U0001f642!", "empty": "", "sp": " \t a b  c\n", "n": 7, "neg": -7, "f": 2.5, "big": 1e20, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "a", "C"], "d": {"b": 1, "a": [1, 2], "items": "key"}, "ld": [{"k": "x", "v": 1}, {"k": "y", "v": 0}, {"k": "x", "v": 2}], "nested": {"a": {"b": [10, {"c": "deep"}]}},
    "lines": "one\n  two\n\nthree", "quote": "it's \"q\" \\ \n\t\x01", "mixed": [1, "two", None, True, 2.0, {"x": "y'"}, []],
}
LANGUAGE = r"""
{{ s }}|{{ n }}|{{ f }}|{{ t }}|{{ nil }}|{{ missing }}|{{ l }}|{{ ls }}|{{ mixed }}|{{ d }}
{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e100 }} {{ 123456789.125 }} {{ big }}
{{ 1_000 + 1 }} {{ 'a' 'b' "c" }} {{ '\x41\u00e9\n\\\'' }} {{ "tab\tq\"" }} {{ '\d' }}
{{ 'a' ~ 1 ~ none ~ 1.5 ~ true }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 'ab' * 3 }} {{ [0] * 3 }} {{ 2 * 'x' }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 'a' }} {{ none == none }} {{ 1 != 2 }} {{ 1 <= 1 }} {{ 2 >= 3 }}
{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in l }} {{ 'a' in d }} {{ 9 in l }} {{ not 1 in l }} {{ 'x' in missing }}
{{ 1 and 0 }} {{ 0 or 'x' }} {{ not 0 }} {{ '' or none }} {{ 1 and 2 and 3 }} {{ not not 'a' }} {{ t and not no }}
{{ 'yes' if t else 'no' }} {{ 'yes' if no else 'no' }} [{{ 'yes' if no }}] {{ 'a' if no else 'b' if no else 'c' }}
{{ (1, 2) }} {{ (1,) }} {{ () }} {{ 1, 2 }} {{ [] }} {{ {} }} {{ {'a': 1, 'b': [2]} }}
{{ -n }} {{ +n }} {{ - -n }} {{ -n|abs }} {{ 2 - -2 }} {{ -f }}
{{ l[0] }} {{ l[-1] }} {{ l[5] }}| {{ s[1] }} {{ s[-1] }} {{ u[1] }} {{ u[6] }} {{ d['b'] }} {{ d.a[1] }} {{ d['zz'] }}| {{ d['items'] }} {{ nested.a.b[1].c }} {{ nested['a']['b'].0 }}
{{ l[1:] }} {{ l[:1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[-2:] }} {{ l[5:] }} {{ s[7:] }} {{ s[::-1] }} {{ u[1:8] }} {{ u[-3:-1] }} {{ s[::3] }} {{ l[:-1] }} {{ s[10:2:-2] }}
{% for x in l %}{{ x }}{% endfor %}|{% for k in d %}{{ k }}{% endfor %}|{% for c in 'h\u00e9' %}{{ c }}.{% endfor %}|{% for x in missing %}{{ x }}{% else %}none{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for a, b in [[1, 2], (3, 4)] %}{{ a }}{{ b }}{% endfor %} {% for (a, b) in [[1, 2]] %}{{ a + b }}{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}
{% for x in range(10) if x % 3 == 0 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% for y in ls %}{{ loop.index }}{{ x }}{{ y }}{% endfor %}{{ loop.index }};{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}
{% set x = 0 %}{% for i in l %}{{ x }}{% set x = x + i %}{% endfor %}
{% set ns = namespace(x=0, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set c %}block {{ a }}{% endset %}{{ c }} {{ c | upper }}
{% if no %}a{% elif nil %}b{% elif l %}c{% else %}d{% endif %}{% if not l %}{% else %}e{% endif %}
{% macro mf(a, b='B', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ mf(1) }}{{ mf(1, 2) }}{{ mf(c=3, a=1) }}{{ mf() }}{{ mf('x') | upper }}
{% macro mg(n) %}{{ n }}{% if n > 0 %}{{ mg(n - 1) }}{% endif %}{% endmacro %}{{ mg(3) }}
{% set outer = 'o' %}{% macro mh() %}{{ outer }}{{ i }}{% endmacro %}{% for i in l %}{{ mh() }}{% endfor %}
{{ sp | trim }}| {{ s | upper }} {{ s | lower }} {{ 'ab cd-ef (gh' | title }} {{ 'hELLO wORLD' | capitalize }} {{ 'xxaxx' | trim('x') }} {{ 5 | trim }}
{{ s | length }} {{ u | length }} {{ l | count }} {{ d | length }} {{ missing | length }} {{ empty | length }}
{{ missing | default('d') }} {{ nil | default('d') }} {{ nil | default('d', true) }} {{ empty | d('e', boolean=true) }} {{ s | default('x') }} {{ missing | default }}|
{{ l | join }} {{ l | join(', ') }} {{ ls | join('-') }} {{ ld | join('/', attribute='k') }} {{ d | join(',') }} {{ 'abc' | join('.') }} {{ mixed | join(' ') }}
{{ mixed | tojson }} {{ d | tojson }} {{ quote | tojson }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ s | tojson }} {{ n | tojson }} {{ f | tojson }} {{ nil | tojson }} {{ t | tojson }}
{{ nested | tojson(indent=2) }} {{ mixed | tojson(indent=4) }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ [] | tojson(indent=2) }}
{{ lines | indent }} {{ lines | indent(2) }} {{ lines | indent(2, true) }} {{ lines | indent(1, first=true, blank=true) }} {{ lines | indent('> ') }}
{{ l | first }} {{ l | last }} {{ s | first }} {{ [] | first }}| {{ l | list }} {{ 'abc' | list }} {{ d | list }} {{ l | reverse | list }} {{ s | reverse }}
{{ l | sort }} {{ l | sort(reverse=true) }} {{ ls | sort }} {{ ls | sort(case_sensitive=true) }} {{ ld | sort(attribute='v') | map(attribute='v') | list }} {{ d | dictsort }} {{ {'B': 1, 'a': 2} | dictsort(by='value', reverse=true) }}
{{ ['a', 'A', 'b', 'a'] | unique | list }} {{ ld | unique(attribute='k') | map(attribute='v') | list }} {{ l | min }} {{ l | max }} {{ l | sum }} {{ ld | sum(attribute='v') }} {{ ld | sum('v', 10) }}
{{ ld | selectattr('k', 'equalto', 'x') | list }} {{ ld | selectattr('v') | list | length }} {{ ld | rejectattr('k', 'eq', 'x') | list }} {{ l | select('>', 1) | list }} {{ l | reject('odd') | list }} {{ [0, 1, ''] | select | list }} {{ ld | selectattr('z', 'defined') | list }}
{{ ls | map('upper') | join }} {{ ld | map(attribute='k') | join }} {{ ld | map(attribute='z', default='?') | join }} {{ [[1, 2], [3]] | map('length') | list }} {{ [' a '] | map('trim') | list }} {{ ['a'] | map('replace', 'a', 'b') | list }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '3.7' | int }} {{ 3.9 | int }} {{ ' 12 ' | int }} {{ '1.5' | float }} {{ 'q' | float }} {{ 2 | float }} {{ -3 | abs }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 2.1 | round(method='ceil') }} {{ 3 | string }}{{ 3 | string | length }}
{{ 'aXbXc' | replace('X', '--') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ s | replace('l', '') }} {{ 'ab' | replace('', '-') }} {{ d | items | list }} {{ d | attr('zz') }}|{{ s | safe }}
{{ missing is defined }} {{ s is defined }} {{ missing is undefined }} {{ nil is none }} {{ s is string }} {{ n is number }} {{ f is float }} {{ n is integer }} {{ t is integer }} {{ t is boolean }} {{ t is true }} {{ no is false }} {{ d is mapping }} {{ l is sequence }} {{ s is sequence }} {{ l is iterable }} {{ n is iterable }} {{ namespace is callable }} {{ t is number }}
{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'a' is in ['a'] }} {{ 1 is eq 1 }} {{ 1 is ne(1) }} {{ 2 is gt 1 }} {{ 2 is lt(1) }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ s is not string }} {{ s is not none and t }} {{ 1 is eq 1 and 2 is eq 2 }}
{{ sp.strip() }}|{{ sp.lstrip() }}|{{ sp.rstrip() }}|{{ 'xyaxy'.strip('yx') }} {{ 'a,b,,c'.split(',') }} {{ sp.split() }} {{ 'a b c'.split(' ', 1) }} {{ ' a b c '.split(none, 1) }} {{ 'a<>b<>c'.split('<>')[-1] }} {{ lines.splitlines() }}
{{ s.startswith('Hell') }} {{ s.endswith('x') }} {{ s.startswith(('x', 'H')) }} {{ s.upper() }} {{ s.lower() }} {{ 'ab cd'.title() }} {{ "they're x1y"  .title() }} {{ 'aB'.capitalize() }} {{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ s.find('W') }} {{ u.find('!') }} {{ s.find('zz') }} {{ s.count('l') }} {{ ','.join(ls) }} {{ '12'.isdigit() }} {{ 'a1'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ ''.isdigit() }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }}
{{ d.keys() | list }} {{ d.values() | list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 'dflt') }} {{ ls.index('a') }} {{ [1, 1, 2].count(1) }} {{ d.items() | list }}
{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ strftime_now('%Y-%m-%d %H:%M:%S %d %b') }}
a {%- if t -%} b {%- endif -%} c {{- ' d ' -}} e
  {%+ if t %}lead{% endif %}|
a{# comment #}b{#- strip -#} c
{# line comment #}
next   {# trailing #}
  {# own line #}
d
{% raw %}{{ x }} {% if %} {# c #}{% endraw %} after {%- raw -%}  y  {%- endraw -%} z
{{ '{{' }} {{ '%}' }} {{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': '}}'}.a }} { { } } {{ "a}}b" }}
{{ n.x }}| {{ nil.x }}| {{ s.nomethod }}| {{ l.x }}|
{{ missing ~ 'x' }} {{ missing == none }} {{ missing or 'dd' }} {{ [missing] | length }} {{ missing | upper }}| {{ missing | list }} {{ missing | join(',') }}|
{%- set x = [1, 2] -%} {{ x }} {%- set y = {'k': x} %} {{ y.k[0] }}
{{ (l | length) + 1 }} {{ l | length + 1 }} {{ 'a' ~ l | length }} {{ (1 + 2) * 3 }} {{ 10 - 2 - 3 }} {{ 2 * 3 ~ 'x' }} {{ 1 + 2 ~ 3 if no else 'p' }} {{ not l | length == 3 }} {{ 1 in l and 2 in l }} {{ n if n is number else 0 }}
{{ true }} {{ True }} {{ false }} {{ None }} {{ none }}
{% for m in ld %}{% if loop.first %}F{% endif %}{% if m.k == 'x' and not loop.last %}{{ m.v }}{% elif loop.last %}L{% endif %}{% endfor %}
"""


def language_cases():
    lines = [line for line in LANGUAGE.split("\n") if line]
    # Every line alone, and all of them in one template, where whitespace control spans lines.
    multi = [
        "x\n  {% if t %}\n  y\n  {% endif %}\nz\n",
        "{% if t +%}\nkept\n{% endif %}\n  {%+ if t %}lead{% endif %}|\n\n",
        "\t{% for x in l %}\n\t{{ x }}\n\t{% endfor %}\nend",
        "a\r\nb\r{% if t %}\r\nc{% endif %}\r\n",
        "  {%- if t %} a {% endif -%}\n\n  b  {{- s -}}  \n c",
        "{# c #}\n{# d #}\n  {# e #} f\n",
        "{% if t %}\n\n{% endif %}\n\n",
        "{%- for x in [1,2] %}\n\n  {{ x }}\n\n{%- endfor %}\n",
        "line\n   {{ s }}   \n\n",
        "{{ s }}\n{{ n }}\n",
        "",
        "\n",
        "\n\n",
        "{% set x %}\n  a\n{% endset %}\n[{{ x }}]",
        "{% macro m(x) %}\n  <{{ x }}>\n{% endmacro %}\n{{ m(1) }}{{ m(2) }}",
        "{% for x in l -%}\n  {{ x }},\n{%- endfor %}|",
        "{% if no %}a{% else -%}  \n b {%- endif %}",
    ]
    for source in lines + multi + ["\n".join(lines)]:
        yield {"source": source, "rendered": ENV.from_string(source).render(**VARS)}


def write(name, data):
    (HERE / name).write_text(json.dumps(data, indent=0) + "\n")


def main():
    write("templates.json", list(template_cases()))
    write("language.json", {"vars": json.dumps(VARS), "now_unix_s": NOW, "cases": list(language_cases())})


if __name__ == "__main__":
    main()
