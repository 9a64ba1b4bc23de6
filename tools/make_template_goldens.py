#!/usr/bin/env python3
"""Writes rust/text/testdata/template_goldens.json: what Python's Jinja2, set up as transformers sets
it up for chat templates, makes of small templates.

    python3 -m venv V && V/bin/pip install jinja2==3.1.6 && V/bin/python tools/make_template_goldens.py

With arguments, other templates, rendered with the same conversations, for SMOE_TEMPLATE_GOLDENS=FILE
cargo test (the published ones are not ours to keep here):

    V/bin/python tools/make_template_goldens.py --out FILE TEMPLATE.jinja tokenizer_config.json ...

"text" is the output; "error" is Python's message where it refuses, "raised" where the template did.
Set-up after transformers 4.57 utils/chat_template_utils.py, _compile_jinja_template.
"""

import argparse
import datetime
import json
import os
import pathlib
import time

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1750000000  # 2025-06-15 15:06:40 UTC
ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "rust/text/testdata/template_goldens.json"


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _same(self, context, caller):
        return caller()


class Raised(Exception):
    pass


def environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(NOW).strftime(format)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


CONTEXT = {
    "s": " H\u00e9llo\x1f w \n", "l": [1, 2.5, True, None, "a'b"], "d": {"b": 1, "a": {"items": [1]}, "items": "K", "keys": 2},
    "e": [], "n": None, "f": 1e-7, "g": 1e16, "h": 100.0, "big": 12345678901234567890, "t": True, "z": "",
    "m": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}],
    "tool": {"name": "\u00e9<b>&'", "b": 1, "a": 2.0, "n": None},
    "wide": {"k%d" % i: i for i in range(12)},
}

# One template each, with letters beyond ASCII as @name@; the blocks at the end have several lines.
SNIPPETS = r"""
{{ l }}
{{ d }}
{{ t }} {{ n }} {{ f }} {{ g }} {{ h }} {{ big }}
{{ 'x' ~ t ~ n ~ 'y' ~ 3 }}
{{ l|join(',') }}
{{ l|string }}
{{ d|tojson }}{{ d|tojson(indent=2) }}{{ l|tojson(separators=(',',':')) }}{{ d|tojson(sort_keys=true) }}{{ '@e@<>&\''|tojson }}{{ '@e@@smile@'|tojson(ensure_ascii=true) }}
{{ d|tojson(indent=4)|safe }}
{{ tool|tojson }}
{{ tool|tojson(indent=4) }}
{{ tool|tojson(ensure_ascii=False) }}
{{ tool|tojson(separators=(',', ':')) }}
{{ [tool, []]|tojson(indent=1) }}{{ {}|tojson(indent=2) }}{{ []|tojson(indent=2) }}
{{ {'a': (1, 2), 'b': 1e20, 'c': -0.0, 'd': 1.5e-9}|tojson }}
{{ "tab\tquote\"back\\slash/\x7f\x01\u2028"|tojson }}
{{ wide|tojson }}{{ wide.k11 }}{{ wide['k3'] }}{{ wide.zz is defined }}
{{ s.strip() }}|{{ s|trim }}|{{ s.rstrip('\n ') }}|{{ s.lstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxaxx'|trim('x') }}
{{ 'a,b,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a b c'.split(' ',1)[1] }}{{ 'a,b,c'.split(',')[-1] }}
{{ 'a-b-c'.rsplit('-',1) }}{{ 'a-b-c'.rsplit('-') }}{{ ' a  b  c '.rsplit(None, 1) }}{{ ' a  b  c '.split(None, 1) }}{{ 'a-b-c'.split('-', maxsplit=1) }}{{ ''.split(',') }}{{ ''.split() }}
{{ 'a-b-c'.partition('-') }}{{ 'abc'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.rpartition('-') }}
{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ 'abc'.removeprefix('x') }}{{ 'abc'.removesuffix('x') }}
{{ 'a\x0bb\u2028c\r\nd'.splitlines() }}{{ 'a\nb\n'.splitlines(True) }}{{ ''.splitlines() }}{{ '\n'.splitlines() }}
{{ 'a-b'.find('b') }}{{ 'aXa'.rfind('a') }}{{ 'abc'.find('z') }}{{ 'abcabc'.find('a', 1) }}{{ 'abcabc'.count('a') }}{{ 'h@e@@e@'.count('') }}{{ 'h@e@@e@'.rindex('@e@') }}{{ 'abcabc'.find('a', -2) }}
{{ 'h@e@llo'[1:3] }}{{ 'h@e@llo'[::-1] }}{{ l[::-1] }}{{ l[1:] }}{{ l[-2:] }}{{ 'h@e@llo'|length }}{{ l[::2] }}{{ m[::-1][0].role }}
{% for k,v in d.items() %}{{k}}={{v}};{% endfor %}
{% for k,v in d|items %}{{k}}={{v}};{% endfor %}{% for k,v in d|dictsort %}{{k}};{% endfor %}
{{ d.get('zz') }}{{ d.get('zz','q') }}{{ d.keys()|list }}{{ d.values()|list|length }}{{ d.copy().b }}
{{ d['items'] }}
{{ d.nokey is defined }}{{ d.nokey }}{{ d.nokey is none }}
{{ d.nokey.sub }}
{{ undefinedvar }}{{ undefinedvar is undefined }}{{ 'x' if undefinedvar else 'y' }}{{ undefinedvar|default('D') }}{{ z|default('D',true) }}
{% set ns = namespace(x=1,y=[]) %}{% for i in range(3) %}{% set ns.x = ns.x + i %}{% set ns.y = ns.y + [i] %}{% endfor %}{{ ns.x }}{{ ns.y }}
{% for i in [1,2,3,4] %}{% if i==2 %}{% continue %}{% endif %}{% if i==4 %}{% break %}{% endif %}{{ i }}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}
{% for x in m if x.role == 'tool' %}{{ x.content }}{{ loop.last }}{% else %}none{% endfor %}
{% for x in m recursive %}{{ x.role }}{% endfor %}
{{ m|selectattr('role','equalto','user')|list|length }}{{ m|map(attribute='role')|list }}{{ m|rejectattr('role','in',['tool'])|map(attribute='content')|join('-') }}
{{ m|groupby('role')|length }}{{ m|first }}{{ m|last }}
{% macro f(a,b=2) %}{{a}}{{b}}{{ caller is defined }}{% endmacro %}{{ f(1) }}{{ f(1,b=3) }}
{% macro g() %}[{{ caller() }}]{% endmacro %}{% call g() %}hi{% endcall %}
{% if n is iterable %}A{% endif %}{% if 'x' is iterable %}B{% endif %}{% if 5 is iterable %}C{% endif %}{% if d is iterable %}D{% endif %}{% if u is iterable %}E{% endif %}
{% if 'x' is sequence %}B{% endif %}{% if d is sequence %}D{% endif %}{% if d is mapping %}M{% endif %}{% if t is number %}N{% endif %}{% if 1.0 is float %}F{% endif %}{% if t is boolean %}O{% endif %}{% if t is true %}T{% endif %}{% if n is none %}0{% endif %}{% if t is sameas true %}S{% endif %}
{% if 3 is integer %}I{% endif %}{% if t is integer %}J{% endif %}{% if 'a' is lower %}L{% endif %}{% if l is mapping %}M{% endif %}{% if n is not mapping %}N{% endif %}{% if d.a is mapping %}A{% endif %}
{{ 1/2 }}{{ 4/2 }}{{ 7//2 }}{{ -7//2 }}{{ -7%3 }}{{ 2**3 }}{{ 1+1.0 }}
{{ 'a'*3 }}{{ [1]*2 }}{{ [1]+[2] }}{{ 'a'+'b' }}{{ (1,2) }}{{ (1,) }}{{ {'a':1}|tojson }}{{ {'a':(1,2)} }}
{{ 'a' + 1 }}
{{ 'a' in 'abc' }}{{ 'a' in d }}{{ 1 in l }}{{ 'x' not in [] }}{{ 'a' in u }}
{{ 1 == 1.0 }}{{ '1' == 1 }}{{ 'a' < 'b' }}{{ [1,2] == [1,2] }}{{ d == d }}
{{ not e }}{{ e or 'x' }}{{ z and 1 }}{{ n or t }}{{ 0 or [] }}
{{ 'x'|upper }}{{ 'heLLo wORLD'|title }}{{ 'heLLo'|capitalize }}{{ 'heLLo wo'.title() }}{{ "it's".title() }}{{ 'aB'.swapcase() }}{{ 'STRASSE'.casefold() }}
{{ '%s-%d-%.2f'|format('a',3,1.5) }}
{{ '{}-{:>4}|{x}'.format(1,'b',x='n') }}
{{ 3|int }}{{ '12'|int }}{{ 'x'|int(7) }}{{ 3.7|int }}{{ 3.456|round(1) }}{{ 2.5|round }}{{ -3|abs }}{{ '1.5'|float }}
{{ [3,1,2]|sort }}{{ [3,1]|max }}{{ [1,2]|sum }}{{ [1,1,2]|unique|list }}{{ 'abc'|list }}{{ 'abc'|reverse }}{{ ['a','B','c']|sort }}
{{ [1,2,3,4,5]|batch(2)|list }}{{ [1,2,3]|slice(2)|list }}
{{ 'a<b'|e }}{{ 'a<b'|escape }}{{ '<'|safe }}
{{ 'a\nb'|indent(2) }}{{ 'a b c'|replace('b','X') }}{{ 'aXbX'.replace('X','y',1) }}{{ 'word count it'|wordcount }}
{{ 'x' if t }}{{ 'x' if n }}|
{{- ' a ' -}} b {{- 'c' }} d
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set q %}blk{{ a }}{% endset %}{{ q }}{{ q|length }}
{% with p = 4 %}{{ p }}{% endwith %}{% filter upper %}abc{% endfilter %}{% raw %}{{ x }}{% endraw %}{# c #}
{% generation %}G{{ s|trim }}{% set inner = 1 %}{% endgeneration %}{{ inner is defined }}
{{ strftime_now('%d %b %Y %H:%M') }}|{{ strftime_now('') }}|{{ strftime_now('%Y-%m-%d') }}
{{ raise_exception('boom') }}
{{ raise_exception('only ' ~ 3 ~ ' roles') }}
{{ s.isspace() }}{{ '5'.isdigit() }}{{ 'abc'.index('c') }}{{ 'aXa'.count('a') }}{{ 'ab'.startswith(('x','a')) }}{{ 'ab'.endswith('b') }}{{ 'ab'.startswith('b', 1) }}{{ 'A'.lower() }}
{{ 'a'.zfill(3) }}|{{ '-5'.zfill(4) }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '*') }}|{{ 'ab'.center(5) }}|{{ 'abc'.center(6, '-') }}|{{ 'a\tb'.expandtabs(4) }}
{{ 'abc'.index('z') }}
{{ ','.join(['a','b']) }}{{ l.index(2.5) }}{{ l.count(1) }}{{ ','.join(d) }}
{{ ','.join([1]) }}
{{ l.index('zz') }}
{{ e.append(1) }}
{{ dict(a=1)|tojson }}{{ range(1,7,2)|list }}
{% set c = cycler('a','b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}
{% set j = joiner(',') %}{{ j() }}{{ j() }}
{{ 'a b/c&@e@'|urlencode }}{{ {'a b': 'c/d', 'e': 1}|urlencode }}
{{ messages[0]['x'] }}
{{ l[99] }}{{ l[99] is defined }}{{ d['q'] }}{{ 'abc'[9] }}
{{ loop is defined }}{% for i in '' %}{% else %}E{% endfor %}{% for c in 'h@e@' %}{{ c }}.{% endfor %}
{% for a in [[1,2],[3,4]] %}{% for b in a %}{{ loop.index0 }}{{ b }}{% endfor %}{{ loop.index }}{% endfor %}{% for a,b in [[1,2]] %}{{ a }}{{ b }}{{ loop.cycle('x','y') }}{{ loop.revindex }}{% endfor %}
{{ 1 if true else 2 }}{{ True }}{{ None }}{{ none }}{{ False }}{{ 'a' is string }}{{ '' is string }}{{ 1e3 }}{{ 1_000 }}{{ 0x1f }}
{% if x is not defined %}nd{% endif %}{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% for i in [1] %}{% set x = 9 %}{% endfor %}{{ x }}
{{ 5|tojson }}{{ 1.0|tojson }}{{ n|tojson }}
{{ u|tojson }}
{{ m[0].content[0] }}{{ m[-1]['role'] }}{{ (m|last).role }}{{ m[0]|length }}{{ (l + [3])|length }}{{ {}|length }}
{{ 'x' ~ u ~ 'y' }}{{ s|length }}{{ '@sz@'|upper }}{{ '@I@'|lower|length }}
{{ [[1,2],[3]]|sum(start=[]) }}
{{ l|select('string')|list }}{{ l|reject('none')|list }}{{ [0,1]|select|list }}{{ ['1','2']|map('int')|list }}{{ m|map(attribute='zz', default='d')|list }}
{{ 'x' in ('x','y') }}{{ 3 is divisibleby 3 }}{{ 3 is odd }}{{ 'a' is in ['a'] }}{{ 'tojson' is filter }}{{ d is callable }}
{{ 'a' ~ 1.5 ~ [1, 'b'] ~ {'k': none} }}
{{ ['<', '>']|tojson }}{{ '</script>'|tojson }}
{{ '123'|nosuchfilter }}
{{ 1 is nosuchtest }}
{{ 'unclosed }}
{% if x %}
{% nosuchtag %}
{{ f ~ '|' ~ g ~ '|' ~ h ~ '|' ~ 0.1 }}{% set x = 1.0 %}{{ 'v' ~ x }}{{ t ~ n }}
{{ '%s' % n }}{{ 'x%s' % ('y') }}{{ '%s-%s' % ('a', 1) }}{{ '%d%%' % 5 }}{{ '%.2f' % 1.5 }}{{ '%s' % l }}{{ '%s' % t }}{{ '%05d|%-4s|%x' % (7, 'a', 255) }}
{{ 7 % 3 }}{{ -7 % 3 }}{{ 7 % -3 }}{{ 7.5 % 2 }}{{ -7.5 % 2 }}{{ t % 2 }}
{{ 7 % 0 }}
{{ n % 2 }}
{{ '%s %s' % 'a' }}
{{ range is callable }}{{ m is callable }}
{{ '3.7'|int }}{{ none|int }}{{ [1]|int(default=4) }}{{ 'ff'|int(base=16) }}{{ ' 7 '|int }}{{ true|int }}{{ none|float }}{{ '1e3'|float }}
{{ message.content is string }}{{ u is string }}{{ u is mapping }}{{ u is none }}{{ u|length }}{{ u|list }}{{ u|join }}{{ u|trim }}|
{{ '@e@'|lower }}{{ '@E@'.lower() }}{{ '@e@a'.capitalize() }}{{ 'ab cd'.title() }}{{ 'x1'.isalnum() }}{{ 'x'.isalpha() }}{{ '@two@'.isdigit() }}{{ '@half@'.isnumeric() }}{{ 'A b'.istitle() }}{{ 'AB'.isupper() }}
{{ l|tojson|length }}{{ (l|tojson)[0] }}{{ d|tojson|trim }}{{ m|tojson|replace('role', 'R') }}
{% for k, v in {'b': 1, 'a': [2]}.items() %}{{ loop.index }}{{ k }}{{ v }}{% endfor %}{{ {'b': 1}|items|list }}{{ {'b': 1}.items()|list }}
{{ (d.items()|list)[0][1] }}{% for p in d.items() %}{{ p[0] }}{% endfor %}{{ d.values()|list }}{{ d|length }}{{ d|list }}{{ d|first }}
{% set d2 = dict(d, zz=5) %}{{ d2.zz }}{{ d2.b }}
{{ {'a': 1} == {'a': 1.0} }}{{ 'a' == u }}{{ 1 < 2 < 3 }}{{ not not t }}{{ 3 - 5 }}{{ -3 // 2 }}{{ 2 ** 0.5 }}{{ 10 // 3.0 }}
{{ 'line\n' }}{{ "q\"'" }}{{ 'tab\t' }}{{ '\u00e9' }}
{% macro r(x) %}{% if x > 0 %}{{ x }}{{ r(x - 1) }}{% endif %}{% endmacro %}{{ r(3) }}
{% set ns = namespace() %}{% set ns.a = 'q' %}{{ ns.a }}{{ ns.b is defined }}
{% for a in l recursive %}{{ loop.depth }}{% endfor %}{% for x in [1, [2]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}
{% for x in range(3) %}{% if loop.changed(x // 2) %}c{% endif %}{{ loop.index }}{% endfor %}{{ range(3)|sum }}{{ range(0)|list }}{{ range(3)[1] }}
{% if 'a' in ['a'] and 'b' not in 'xyz' or false %}ok{% endif %}{{ 'k' in d.a }}{{ 'items' in d.a }}
{{ '' or none }}{{ none or 'x' }}{{ 0 and 1 }}{{ 'a' and 'b' }}{{ (none, 1) }}{{ [none, true, 1.5, 'x'] }}
{{ '<think>' in 'a<think>b' }}{{ 'a<think>b</think>c'.split('</think>')[-1] }}{{ 'a<think>b</think>c'.split('</think>')[0].split('<think>')[-1] }}
{{ "a" "b" }}{{ 'a' ~ ('b' if false) }}{{ ('b' if false) is defined }}
{{ 5 is in [5] }}{{ 5 is eq 5 }}{{ 5 is gt 3 }}{{ 5 is odd }}{{ 4 is even }}{{ 'A' is upper }}{{ x.y is undefined }}
{{ m|map(attribute='content')|map('upper')|list }}{{ m|selectattr('role', 'in', ['tool', 'user'])|list|length }}{{ m|selectattr('zz')|list }}{{ m|selectattr('zz', 'defined')|list }}
{{ [1, 2, 3]|map('string')|join('+') }}{{ ['a', 'b']|map('replace', 'a', 'c')|list }}{{ [3, 1]|sort|list }}{{ l|length }}{{ l|count }}{{ 'x'|list|first }}
{{ 1.0|string }}{{ 1e-5|string }}{{ 3|float }}{{ 'x'|float }}{{ 2.567|round(2) }}{{ 2.5|round|int }}{{ 2.1|round(0, 'ceil') }}{{ 1234567.0 }}{{ 12345678901234567890.0 }}
{{ m[0].update({'a': 1}) }}
{{ m.0 }}{{ d.a['items'][0] }}{{ l[-1][0] }}{{ l[0:2][1] }}{{ 'abc'[-1] }}{{ 'abc'[1] }}{{ (1, 2)[1] }}{{ l[-9:] }}
{{ m | selectattr('content') | map(attribute='content') | join(', ') }}{{ m|map(attribute='role')|unique|join('/') }}
{{ ['b','a']|sort(reverse=true) }}{{ m|sort(attribute='content', reverse=true)|map(attribute='role')|join }}{{ [1,2,3]|last }}{{ []|first is defined }}
{{ 'a' if m is sequence and m is not mapping and m[0] is mapping else 'b' }}{{ m[0].get('content', '')|trim }}{{ 'content' in m[0] }}{{ m[0]['nope']|default('', true)|length }}
"""
for name, letter in {"e": "\u00e9", "E": "\u00c9", "sz": "\u00df", "I": "\u0130", "two": "\u00b2", "half": "\u00bd", "smile": "\U0001f600"}.items():
    SNIPPETS = SNIPPETS.replace(f"@{name}@", letter)
SNIPPETS = SNIPPETS.strip("\n").split("\n")

BLOCKS = [
    "line1\n  {% if true %}\n  indented\n  {% endif %}\nline2\n",
    "{%- generation -%}\n  body\n{%- endgeneration %}\nafter",
    "a\r\n  {% if t %}\r\nb\r\n  {% endif %}\r\nc\rd",
    "{{- 'x' -}}\n\n  {%- set x = 5 -%}  {{ x }}\n\n{# comment #}\n  {# c #}  z\n",
    "\n{% for i in [1, 2] %}\n    {% if i == 1 %}\n        {{ i }}\n    {% endif %}\n{% endfor %}\nend\n\n",
    "{%+ if true %}x{%+ endif %}\n  {%+ if true %}y{% endif +%}\n z",
]

# Ours, one per habit of the published families.
TEMPLATES = {
    "chatml_think": """{%- set ns = namespace(last=messages|length - 1, looking=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.looking and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.looking = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- (call.function or call).name }}
            {{- '", "arguments": ' }}
            {%- if (call.function or call).arguments is string %}
                {{- (call.function or call).arguments }}
            {%- else %}
                {{- (call.function or call).arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "xml_mapping": """[gMASK]<sop>
{%- macro visible(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- elif item is string -%}
                {{- item }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible(m.content) }}
{%- elif m.role == 'assistant' -%}<|assistant|>
{%- if m.content %}{{ '\\n' + visible(m.content).strip() }}{% endif %}
{%- for tc in m.tool_calls or [] %}
{%- set f = tc.function if tc.function else tc %}
{{ '\\n<tool_call>' + f.name }}
{%- for k, v in f.arguments.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{%- endfor %}
</tool_call>
{%- endfor %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{% endif %}
{{- '\\n<tool_response>\\n' + visible(m.content) + '\\n</tool_response>' }}
{%- elif m.role == 'system' -%}<|system|>
{{ visible(m.content) }}
{%- endif -%}
{% endfor %}
{{- '<|assistant|>' if add_generation_prompt else '' }}""",
    "text_arguments": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=true, system='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system = ns.system + message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}{%- for message in messages %}{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{%- elif message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] %}{{ '<|Assistant|>' }}{%- if message['content'] is not none %}{{ message['content'] }}{%- endif %}{%- for tool in message['tool_calls'] %}{{ '<|call|>' + tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments'] + '\\n```' }}{%- endfor %}{{ '<|end|>' }}{%- elif message['role'] == 'assistant' %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<|Assistant|>' + content + '<|end|>' }}{%- elif message['role'] == 'tool' %}{{ '<|output|>' + message['content'] }}{%- endif %}{%- endfor %}{% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}""",
    "alternate": """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}""",
    "dated": """{%- set today = strftime_now("%d %B %Y") -%}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
<|start|>system<|message|>Today: {{ today }}; {{ date_string }}
{%- if tools is not none %}
{{ " Tools: " ~ tools|length }}
{%- for t in tools %}
// {{ t.function.description }}
type {{ t.function.name }} = (_: {
{%- for name, spec in t.function.parameters.properties.items() %}
{{ name }}{{ "?" if name not in (t.function.parameters.required or []) }}: {{ spec.type }}{{ "," if not loop.last }}
{%- endfor %}
}) => any;
{%- endfor %}
{%- endif %}<|end|>
{%- for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content if m.content is string else (m.content|map(attribute='text')|join('') if m.content else '') }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}""",
}

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city, in \u00b0C & <more>.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "K\u00f6ln", "days": 2, "x": [1.0, None, True]}}}]}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


CONVERSATIONS = [
    {"messages": [user("Hello")]},
    {"messages": [user("Hello")], "add_generation_prompt": False},
    {"messages": [{"role": "system", "content": "Be brief."}, user("Hi")]},
    {"messages": [user("Hi"), assistant("Hello!"), user("Who are you?")]},
    {"messages": [user("Hi"), assistant("<think>\nhm\n</think>\n\nHello!"), user("And?")]},
    {"messages": [user("Hi"), assistant("<think>\nhm\n</think>\n\nHello!")], "add_generation_prompt": False},
    {"messages": [user("Weather?")], "tools": [TOOL]},
    {"messages": [user("Weather?"), CALL, {"role": "tool", "content": "12 \u00b0C", "tool_call_id": "call12345"}], "tools": [TOOL]},
    {"messages": [user("Weather?"), CALL, {"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}, user("Thanks")], "tools": [TOOL]},
    {"messages": [user("a"), user("b")]},
    {"messages": [user("  spaces  \n")], "enable_thinking": False},
    {"messages": [user([{"type": "text", "text": "part 1"}, {"type": "text", "text": " part 2"}])]},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def outcome(env, source, context):
    try:
        return {"text": env.from_string(source).render(**context)}
    except Raised as e:
        return {"raised": str(e)}
    except Exception as e:  # whatever Python's Jinja2 refuses with
        return {"error": f"{type(e).__name__}: {e}"}


def shaped(conversation, as_text):
    conversation = json.loads(json.dumps(conversation))
    for message in conversation["messages"]:
        for call in message.get("tool_calls") or []:
            if as_text:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return conversation


def from_files(paths):
    templates = {}
    for path in paths:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        if path.endswith(".json"):
            text = json.loads(text)["chat_template"]
        templates[path] = text
    return templates


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, default=OUT)
    options.add_argument("templates", nargs="*")
    options = options.parse_args()
    templates = from_files(options.templates) or TEMPLATES
    os.environ["TZ"] = "UTC"
    time.tzset()
    env = environment()
    snippets = [{"source": source, **outcome(env, source, CONTEXT)} for source in SNIPPETS + BLOCKS]
    rendered = []
    for name, source in templates.items():
        # Templates that join the arguments to other text need them as text.
        as_text = "['arguments'] +" in source
        for index, conversation in enumerate(CONVERSATIONS):
            context = {"tools": None, "documents": None, "add_generation_prompt": True, **TOKENS, **shaped(conversation, as_text)}
            rendered.append({"template": name, "conversation": index, **outcome(env, source, context)})
    golden = {"jinja2": jinja2.__version__, "now": NOW, "context": CONTEXT, "snippets": snippets, "tokens": TOKENS,
              "templates": templates, "conversations": CONVERSATIONS, "rendered": rendered}
    options.out.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(snippets)} snippets, {len(rendered)} renderings")


if __name__ == "__main__":
    main()
