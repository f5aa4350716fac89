"""Records what jinja2 makes of small templates, one feature each, for the interpreter in core/text.

Needs: pip install jinja2
Run:   python3 record_jinja.py OUT.json

Set-up and variables as in record_chat.py: messages (below), add_generation_prompt = true, bos_token, eos_token.
OUT.json: {"messages": [...], "cases": [{"template", "text"} or {"template", "error"}]}.
"""
import json
import pathlib
import sys

from record_chat import environment, render

MESSAGES = [
    {"role": "system", "content": " Be kind. "},
    {"role": "user", "content": "Hi, \"you\"! 日本 é"},
    {"role": "assistant", "content": "<think>a\nb</think>\n\nBonjour"},
]

CASES = r'''
plain text
{{ 1 }} {{ 1.5 }} {{ 1e20 }} {{ 0.1 + 0.2 }} {{ 1_000 }} {{ 100000.0 }} {{ 1e-7 }} {{ 2.0 }}
{{ true }} {{ False }} {{ none }} {{ undefined_name }}|
{{ 'a' }} {{ "b\n\t\\\"\'" }} {{ 'x' 'y' "z" }} {{ '\u00e9\x41' }} {{ '\q' }}
{{ [1, 'a', none, true, 2.5] }} {{ (1,) }} {{ (1, 2) }} {{ {'a': 1, 'b': [1]} }} {{ [] }} {{ {} }} {{ () }}
{{ ["it's", 'say "x"', 'b\\n\n', "'\""] }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ +3 }} {{ 1 ~ 2 ~ 'a' ~ none }}
{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] + [2, 3] }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 1 }} {{ none == false }}
{{ 1 != 2 }} {{ 2 >= 2 }} {{ 'b' in 'abc' }} {{ 'x' not in 'abc' }} {{ 2 in [1, 2] }} {{ 'a' in {'a': 1} }} {{ '' in 'abc' }}
{{ not true }} {{ not not true }} {{ true and 0 }} {{ '' or 'x' }} {{ none or [] or 'last' }} {{ 1 and 2 }} {{ not 1 == 2 }}
{{ 'yes' if true else 'no' }} {{ 'yes' if false else 'no' }} {{ 'yes' if false }}| {{ 1 if 0 else 2 if 0 else 3 }}
{{ 'abc'[0] }} {{ 'abc'[-1] }} {{ 'abc'[1:] }} {{ 'abc'[:-1] }} {{ 'abc'[::-1] }} {{ 'abcdef'[1:5:2] }} {{ 'abc'[5:] }}| {{ 'abc'[9] }}|
{{ '日本語'[1] }} {{ '日本語'[::-1] }} {{ '日本語'|length }} {{ 'é日'[1:] }}
{{ [1, 2, 3][1] }} {{ [1, 2, 3][-1] }} {{ [1, 2, 3][1:] }} {{ [1, 2, 3][::-1] }} {{ [1, 2, 3][:2] }} {{ [1, 2, 3][7] }}| {{ (1, 2, 3)[1:] }}
{{ {'a': {'b': 1}}.a.b }} {{ {'a': 1}['a'] }} {{ {'a': 1}.x }}| {{ {'a': 1}['x'] }}| {{ {1: 'one'}[1] }} {{ [1, [2, 3]].1.0 }}
{{ messages[0].role }} {{ messages[1]['content'] }} {{ messages|length }} {{ messages[-1].role }} {{ messages[1:]|length }}
{{ missing is defined }} {{ missing is undefined }} {{ messages is defined }} {{ messages[0].tool_calls is defined }} {{ none is none }} {{ 1 is not none }}
{{ 'a' is string }} {{ 1 is string }} {{ 1 is number }} {{ 1.5 is number }} {{ true is boolean }} {{ 1 is integer }} {{ 1.0 is float }} {{ {} is mapping }} {{ [] is mapping }}
{{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ [] is sequence }} {{ {} is sequence }} {{ 'a' is sequence }} {{ true is true }} {{ 1 is true }} {{ false is false }}
{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(4) }} {{ 'a' is eq 'a' }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge(2) }} {{ 1 is in [1, 2] }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ 'a' is equalto 'b' }}
{{ 1 is defined and 2 is defined }} {{ x is defined or y is not defined }}
{{ '  a b '|trim }}| {{ 'xxaxx'|trim('x') }} {{ 'a'|upper }} {{ 'ÀB'|lower }} {{ 'hello WORLD'|capitalize }} {{ 'hello world-foo'|title }}
{{ [1, 2]|length }} {{ 'ab'|count }} {{ {}|length }} {{ missing|length }}
{{ missing|default('d') }} {{ none|default('d') }} {{ none|default('d', true) }} {{ ''|d('e', boolean=true) }} {{ 'a'|default('d') }}
{{ [1, 'a']|join(', ') }} {{ [1, 2]|join }} {{ 'abc'|join('-') }} {{ []|join(',') }}|
{{ 'aXbXc'|replace('X', '--') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'abc'|replace('', 'x') if false else 'ok' }}
{{ {'b': 1, 'a': 2}|items|list }} {{ {'b': 1, 'a': 2}|dictsort }} {{ [3, 1, 2]|sort }} {{ ['b', 'A', 'c']|sort }} {{ [3, 1, 2]|sort(reverse=true) }}
{{ [1, 2, 3]|first }} {{ [1, 2, 3]|last }} {{ 'abc'|first }} {{ []|first }}| {{ [1, 2, 3]|reverse|list }} {{ 'abc'|reverse }} {{ [1, 2, 1, 3]|unique|list }} {{ [2, 5, 1]|max }} {{ [2, 5, 1]|min }}
{{ '42'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ 3.9|int }} {{ '1.5'|float }} {{ 5|string }} {{ -3|abs }} {{ 5|float }} {{ '3.7'|int }}
{{ 'abc'|list }} {{ 'a\nb\n\nc'|indent }}| {{ 'a\nb'|indent(2, true) }} {{ 'a\n\nb'|indent(2, blank=true) }}
{{ messages|map(attribute='role')|list }} {{ [1, 2]|map('string')|list }} {{ [{'a': {'b': 1}}, {}]|map(attribute='a', default=0)|list }} {{ ['a', 'b']|map('upper')|join }}
{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|first }} {{ messages|rejectattr('role', 'eq', 'user')|list|length }} {{ [0, 1, '', 'a']|select|list }} {{ [1, 2, 3, 4]|select('odd')|list }} {{ [1, 2, 3]|reject('gt', 1)|list }} {{ messages|selectattr('tool_calls', 'defined')|list }} {{ messages|selectattr('role')|list|length }}
{{ {'a': [1, 2.5, none, true], 'é': 'x"\n\t\\\u0001/<'}|tojson }} {{ 'é'|tojson(ensure_ascii=true) }} {{ '😀'|tojson(ensure_ascii=true) }} {{ []|tojson }} {{ {}|tojson }} {{ (1, 2)|tojson }}
{{ {'a': [1, {'b': 2}], 'c': {}, 'd': []}|tojson(indent=2) }}
{{ ' a '.strip() }}| {{ 'xa'.lstrip('x') }} {{ 'ax\n'.rstrip() }}| {{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ')[-1] }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'abc'.split('x') }} {{ ''.split(',') }} {{ ''.split() }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.replace('b', 'X') }} {{ 'AbC'.lower() }} {{ 'abc'.upper() }} {{ 'a b'.title() }} {{ 'abc'.find('c') }} {{ 'abc'.find('x') }} {{ 'aXbX'.count('X') }} {{ '-'.join(['a', 'b']) }} {{ '12'.isdigit() }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'a\nb'.splitlines() }} {{ '{}-{}'.format(1, 'b') }} {{ '{1}{0} {{{x}}}'.format('a', 'b', x=3) }}
{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 'd') }} {{ {'a': 1}.items()|list }} {{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }}
{% set l = [1] %}{% set _ = l.append(2) %}{{ l }} {{ l.pop() }} {{ l }} {% set _ = l.extend([5, 6]) %}{{ l }} {% set _ = l.insert(0, 9) %}{{ l }} {{ l.index(5) }} {{ l.count(5) }}
{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ dict(a=1, b='x') }}
{% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}
{% for i in [1, 2, 3] %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for i in [1, 2] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for i in [1, 2, 3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %}{% for k, v in {'x': 1}.items() %}{{ k }}={{ v }}{% endfor %}{% for k in {'x': 1, 'y': 2} %}{{ k }}{% endfor %}
{% for i in [] %}x{% else %}empty{% endfor %}{% for i in [1] %}x{% else %}empty{% endfor %}
{% for i in range(10) if i is odd %}{{ i }}{{ loop.index }}{% if loop.last %}!{% endif %} {% endfor %}
{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}
{% for i in [1, 2] %}{% for j in 'ab' %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{{ loop.index }}{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(x=1, y='a') %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z is defined }}
{% if true %}{% set y = 3 %}{% endif %}{{ y }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = 'xy' %}{{ c }}{{ d }}
{% set t %}one {{ 1 + 1 }}{% endset %}[{{ t }}]{% set u | upper %}abc{% endset %}{{ u }}{% filter upper %}x{{ 'y' }}{% endfilter %}
{% macro m(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 2) }} {{ m(1, c=3) }} {{ m(b=1, a=2) }}
{% macro fact(n) %}{{ n * (fact(n - 1)|int) if n > 1 else 1 }}{% endmacro %}{{ fact(5) }}
{% set g = 'global' %}{% macro m() %}{{ g }}{% set g = 'inner' %}{{ g }}{% endmacro %}{{ m() }}{{ g }}
{% macro m(x) -%}  {{ x }}  {%- endmacro %}[{{ m('a') }}]{{ m('b')|trim }}{{ m(m('c')) }}
{% generation %}x{{ 1 }}{% endgeneration %}
a {# comment #} b {#- comment -#} c
  {% if true %}  x  {% endif %}  y
{%- if true -%}  x  {%- endif -%}  y
a\n  {% if true %}\nb\n  {% endif %}\nc
a\n  {%- if true %}\nb\n  {%- endif %}\nc
a\n  {%+ if true %}\nb\n  {%+ endif %}\nc
a {% if true +%}\nb{% endif +%}\nc
a\n  {{ 1 }}\n  {{- 2 -}}\n  b
a\n  {# c #}\nb {# c #}\n  d
{% raw %}{{ x }} {% if %}{% endraw %} {{ '{{' }} {{ '}}' }} {{ {'a': {'b': 2}}['a']['b'] }}
{{ {'a': {'b': {'c': 3}}}.a.b.c}}
x\n\n
{{ 'a' }}\n\n{% if 1 %}\n{% endif %}\n
{{- '  a' }}  {{ 'b  ' -}}   c
{{ messages[2].content.split('</think>')[-1].lstrip('\n') }} {{ messages[2]['content'].split('</think>')[0].rstrip('\n').split('<think>')[-1] }}
{{ add_generation_prompt }} {{ bos_token }} {{ eos_token }} {{ tools is none }} {{ tools is defined }} {{ documents }}
{% for m in messages %}{{ '<' + m.role + '>' ~ m.content|trim ~ '\n' }}{% endfor %}
{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role }} {% endfor %}{% set idx = messages|length - 1 %}{{ messages[idx].role }}
{% set s = messages[0].content if messages[0].role == 'system' else '' %}{% set rest = messages[1:] if s else messages %}{{ s }}|{{ rest|length }}
{{ "a" if messages[0].role == "system" and messages|length > 1 else "b" }} {{ (messages|first).role }} {{ messages | map(attribute="role") | join(",") }}
{{ strftime_now('%Y-%m-%d %d %b %Y %H:%M') }} {{ strftime_now is defined }}
{{ 1 if missing else 2 }} {{ missing or 'x' }} {{ missing == none }} {{ not missing }} {% for x in missing %}x{% endfor %}
{{ missing.attr }}
{{ missing + 'a' }}
{{ 'a' + 1 }}
{{ missing() }}
{{ 1 / 0 }}
{{ raise_exception('no ' ~ 'way') }}
{{ 'a'|no_such_filter }}
{{ 1 is no_such_test }}
{% no_such_statement %}
{% if %}
{% for x in %}{% endfor %}
{{ 'unclosed }}
{% if true %}
{{ [1, 2 }}
{{ namespace().x.y }}
{% set m = messages[0] %}{% set m.role = 'x' %}
{{ none + 'a' }}
{{ 'a' < 1 }}
{{ {'b': [1], 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true) }} {{ {'a': 1, 'b': [1, 2]}|tojson(separators=(',', ':')) }} {{ [1, [2]]|tojson(indent=0) }} {{ {'a': [1]}|tojson(indent='--') }} {{ {true: 1, none: 2, 3: 4, 1.5: 5}|tojson }}
{{ 1e16|tojson }} {{ 1e22|tojson }} {{ 0.00001|tojson }} {{ 123456789.125|tojson }} {{ 1.0|tojson }}
{{ 'a<b'|escape }} {{ 'a&"\'>'|e }} {{ '<b>'|safe }} {{ '<b>'|safe + '<i>' }} {{ '<i>' + '<b>'|safe }} {{ '<b>'|safe ~ '<i>' }} {{ ('<b>'|safe)[1:] + '<' }} {{ ' <b> '|safe|trim + '<' }} {{ ('<b>'|safe).upper() + '<' }} {{ ('<b>'|safe) * 2 + '<' }} {{ ('<b>'|safe)|string + '<' }} {{ '<b>'|e|e }}
{{ [1, 2, 3]|sum }} {{ [{'a': 1}, {'a': 2}]|sum(attribute='a') }} {{ 2.5|round }} {{ 3.14159|round(2) }} {{ 2.1|round(0, 'ceil') }} {{ 2.9|round(method='floor') }} {{ 7|round }}
{{ [{'n': 'b', 'v': 1}, {'n': 'A', 'v': 2}]|sort(attribute='n')|map(attribute='v')|list }} {{ [{'n': 'b'}, {'n': 'a'}]|join(', ', attribute='n') }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }} {{ {'b': 1, 'a': 2}|dictsort(reverse=true) }} {{ ['b', 'A', 'c']|sort(case_sensitive=true) }}
{{ ['a', 'A', 'b']|unique|list }} {{ ['a', 'A', 'b']|unique(case_sensitive=true)|list }} {{ [{'v': 3}, {'v': 1}]|min(attribute='v') }} {{ ['b', 'A']|max }} {{ [{'v': 3}, {'v': 1}, {'v': 3}]|unique(attribute='v')|list }}
{{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 0)|list }} {% for k, g in [{'a': 2, 'b': 1}, {'a': 1, 'b': 2}, {'a': 2, 'b': 3}]|groupby('a') %}{{ k }}:{{ g|map(attribute='b')|join(',') }};{% endfor %}
{{ 'one two, three'|wordcount }} {{ '%s is %d, %s'|format('a', 3, none) }} {{ '%s-%s' % (1, 'b') }} {{ '%d%%' % 5 }} {{ '%.2f' % 3.14159 }} {{ '%s' % [1, 'a'] }} {{ '%r' % 'q' }}
{{ [{'a': [{'b': 5}]}]|map(attribute='a.0.b')|list }} {{ [[1, 2], [3]]|map('length')|list }} {{ ['a-b']|map('replace', '-', '+')|list }} {{ messages|selectattr('role', 'in', ['user', 'system'])|list|length }}
{{ 'abcabc'.rfind('b') }} {{ 'abc'.index('c') }} {{ 'a:b:c'.partition(':') }} {{ 'a:b:c'.rpartition(':') }} {{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }} {{ 'é:b'.find('b') }} {{ 'abc'.find('') }} {{ 'abc'.count('') }} {{ 'abc'.rfind('') }}
{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '.') }} {{ 'ab'.center(5, '*') }} {{ 'ab'.center(6) }}| {{ 'a'.center(4) }}| {{ 'é'.ljust(3, '-') }}
{{ 'abc'.isalpha() }} {{ 'ab1'.isalnum() }} {{ ' \t'.isspace() }} {{ 'AB1'.isupper() }} {{ 'ab'.islower() }} {{ ''.isalpha() }} {{ '日本'.isalpha() }} {{ '12'.isnumeric() }} {{ '1a'.isdigit() }} {{ '12'.isdecimal() }} {{ '1'.isupper() }} {{ 'aB'.islower() }}
{% set l = [3, 1, 2] %}{% set _ = l.remove(1) %}{{ l }}{% set _ = l.reverse() %}{{ l }}{% set c = l.copy() %}{% set _ = l.clear() %}{{ l }}{{ c }}
{% set d = {'a': 1} %}{{ d.setdefault('a', 2) }} {{ d.setdefault('b', 3) }} {{ d }} {% set c = d.copy() %}{% set _ = d.update({'a': 9}, z=1) %}{{ c }} {{ d }} {{ d.pop('a') }} {{ d.pop('q', 7) }} {{ d }}{% set _ = d.clear() %}{{ d }}
{{ {'a': 1} == {'a': 1} }} {{ {'a': 1, 'b': [1]} == {'b': [1], 'a': 1} }} {{ {'a': 1} == {'a': 2} }} {{ [1, {'a': none}] == [1, {'a': none}] }} {{ {} == {} }} {{ {'a': 1} != {'a': 1} }} {{ {'a': 1} in [{'a': 1}] }}
{% set s = {'type': 'array'} %}{{ 'y' if s['items'] else 'n' }} {{ s['items'] is defined }} {{ s.items is defined }} {{ s['items']['type'] is defined }} {{ s.items.type is defined }} {{ s['get'] is callable }} {{ {'items': 5}['items'] }} {{ 'abc'['upper']() }}
{{ [1, 2] * 2 }} {{ [] * 999999999999 }} {{ 'a'|indent }} {{ {'a': 1}|items|list }} {{ ('a', 1)|list }} {{ {'k': 'v'}|length }} {{ [[1, 'b'], [1, 'a']]|sort }}
{{ none.x }}| {{ none['x'] }}| {{ none is defined }} {{ (messages[0].missing.y is defined) if false else 'z' }}
{{ messages[9].role }}
{{ none.split('a') }}
{{ 'a'.no_such_method() }}
{{ {'a': 1}.pop('q') }}
{{ 'abc'.index('x') }}
{{ '%d' % 'a' }}
{{ '%s %s' % 'a' }}
{{ {'a': missing}|tojson }}
{{ missing|tojson }}
{{ [1, 'a']|sort }}
{{ 5|items|list }}
'''


def main():
    env = environment()
    cases = []
    for line in CASES.strip("\n").split("\n"):
        # in these a \\n stands for a line end of the template; elsewhere it belongs to a string
        text = line.replace("\\n", "\n") if line.startswith(("a", "x\\n", "{{ 'a' }}\\n")) else line
        try:
            result = render(env.from_string(text), MESSAGES, True)
        except Exception as e:  # a template that does not compile
            result = {"error": str(e)}
        cases.append({"template": text, **(result if isinstance(result, dict) else {"text": result})})
    pathlib.Path(sys.argv[1]).write_text(
        json.dumps({"messages": MESSAGES, "cases": cases}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
