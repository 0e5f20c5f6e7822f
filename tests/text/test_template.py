"""Chat templates: what they write, and that they can do nothing else."""

from __future__ import annotations

import time

import pytest

from lambent.text.template import TemplateError, render

MESSAGES = [{"role": "user", "content": "Hi {{ 7 * 7 }}"}]


def test_a_conversation_as_text() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}\n"
        "<{{ m['role'] }}>{{ m['content'] | trim }}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}<bot>{% endif %}"
    )
    text = render(template, [*MESSAGES, {"role": "bot", "content": " é "}], {"bos_token": "<s>"})
    assert text == "<s><user>Hi {{ 7 * 7 }}\n<bot>é\n<bot>"


ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__.os }}",
    "attr": "{{ (''|attr('__class__')).__mro__ }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "change": "{{ messages.append(1) }}",
    "import": "{% import 'os' as os %}{{ os }}",
    "include": "{% include '/etc/passwd' %}",
    "asked for": "{{ raise_exception('roles must alternate') }}",
    "syntax": "{% for %}",
    "undefined": "{{ nothing.at.all }}",
    "no call": "{{ messages() }}",
}


@pytest.mark.parametrize("kind", ESCAPES)
def test_an_escape_is_an_error(kind: str) -> None:
    with pytest.raises(TemplateError, match=r"the chat template failed: \w"):
        print(render(ESCAPES[kind], MESSAGES, {}))


GREEDY = {
    "memory": "{{ 'a' * 10**10 }}",
    "doubling": "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "output": "{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}",
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "depth": "{{ " + "(" * 5000 + ")" * 5000 + " }}",
}


@pytest.mark.parametrize("kind", GREEDY)
def test_much_is_an_error_and_no_crash(kind: str) -> None:
    with pytest.raises(TemplateError):
        render(GREEDY[kind], MESSAGES, {})


def test_a_loop_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from lambent.text import template

    monkeypatch.setattr(template, "SECONDS", 1)  # the time that is waited; the process has its own
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    start = time.perf_counter()
    with pytest.raises(TemplateError, match="too long"):
        render(loop, MESSAGES, {})
    assert time.perf_counter() - start < 30
