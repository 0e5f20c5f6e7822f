"""The page of `lambent explain --html`, opened in a browser: every kernel is clicked and read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import numpy as np
import pytest

import lambent as lt
from lambent.cli.explain import form
from lambent.cli.page import SCRIPTS, page
from lambent.runtime import save

TABS = ("Tile program", "Source", "Rules", "Rejected")
WIDTHS = (1440, 1024, 700)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        pytest.skip(f"no Chromium on the path (looked for {', '.join(browser.NAMES)})")
    opened = browser.Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


pytestmark = pytest.mark.xdist_group("page")  # one browser for all of them


@pytest.fixture(scope="module")
def small_program(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A real one: two kernels or more, searched for a moment, with nothing remembered."""
    x, w = lt.input("x", (48, 64)), lt.weight("w", np.ones((64, 32), np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return lt.compile((x @ w).softmax(-1), budget=1.5, progress=False)


def kernel(number: int) -> dict[str, Any]:
    """One of many, with everything that may be known, and text that is no markup."""
    tried = '[[[0,8],[1,64]],[0,1],1,[6,2],[["unroll",4]]]'
    return {
        "name": f"k{number}", "count": 1 + number % 6, "ms": 40.0 / (1 + number),
        "bound_ms": 0.01, "tile_program": f"kernel(k{number}): </script><b>&amp; a0 < 3",
        "source": f"void k{number}(void) {{}}\n" + "x" * 500, "schedule": tried,
        "segments": [number % 3], "reads": [f"a_rather_long_name_of_a_buffer.{number}"] * 4,
        "writes": ["out0"], "at_load": number % 7 == 6, "operations": 10.0**number if number < 9
        else 1e9, "bytes_read": 4096.0 * number, "bytes_written": 64.0,
        "rejected": [
            {"what": "kernel", "name": "out0 from c1, c2 (1 reduction inside)", "status": "open",
             "ms": None, "bound_ms": 0.5, "message": ""},
            {"what": "schedule", "name": tried, "status": "ok", "ms": 77.0, "bound_ms": None,
             "message": ""},
            {"what": "schedule", "name": tried, "status": "wrong", "ms": None, "bound_ms": None,
             "message": "off by 3 at [0, 1]"},
        ],
    }  # fmt: skip


def large() -> dict[str, Any]:
    nodes = [["input", "float32", ["s", 64], "x0", []], ["constant", "float32", [], "0.5", []]]
    nodes.append(["expand", "float32", ["s", 64], "", [1]])
    nodes += [["mul", "float32", ["s", 64], "", [i, 2, max(0, i - 5)]] for i in range(2, 60)]
    segment = {"rules": {"online": 2, "unused": 0}, "e_classes": 10, "e_nodes": 20,
               "nodes": nodes, "outputs": [len(nodes) - 1]}  # fmt: skip
    return {
        "name": "large <i>", "device": "cpu", "programs": 10**300, "ms": 100.0, "measured": 400,
        "certificate_void": True, "gap": None, "saturated": False, "rounds": 3,
        "stored": [{"name": f"s{i}", "shape": [8, "s"], "dtype": "int8", "bytes": 8}
                   for i in range(300)],
        "kernels": [kernel(i) for i in range(200)], "segments": [segment] * 3,
        "instances": [{"segment": min(i, 1) + (i == 30), "inputs": ["x"] if i == 0 else [i - 1]}
                      for i in range(31)],
        "progress": [[0.5, None, 0.1], [2.0, 900.0, 0.2], [60.0, 100.0, 0.3]],
        "roofline": {"flops": {"float32": 1e11}, "levels": [[65536, 1e11], [2**62, 1e10]],
                     "launch": 1e-6},
        "seconds": {"saturate": 1.0, "measure": 59.0},
    }  # fmt: skip


def write(folder: Path, found: dict[str, Any]) -> Path:
    path = folder / "page.html"
    path.write_text(page(found), "utf-8")
    return path


def click_through(chromium: browser.Browser, found: dict[str, Any]) -> None:
    """Every kernel, every tab: the texts are there, whole."""
    script = """
      Object.fromEntries([...document.querySelectorAll(".box")].map((box) => {
        box.click();
        const texts = [document.querySelector("#detail h3").textContent];
        for (let i = 0; i < 4; i++) {
          document.querySelectorAll("[role=tab]")[i].click();
          texts.push(document.getElementById("panel").textContent);
        }
        return [box.dataset.kernel, texts];
      }))"""
    read = chromium.run(script)
    assert sorted(read) == sorted(k["name"] for k in found["kernels"])
    for k in found["kernels"]:
        title, *texts = read[k["name"]]
        shown = dict(zip(TABS, texts, strict=True))
        assert title.startswith(k["name"])
        assert shown["Tile program"] == k["tile_program"] and shown["Source"] == k["source"]
        for r in k.get("rejected", ()):
            assert r["what"] == "schedule" or r["name"] in shown["Rejected"]
            assert r["message"] in shown["Rejected"]
        for segment in k.get("segments", ()):
            rules = found["segments"][segment]["rules"]
            assert all(rule in shown["Rules"] for rule, n in rules.items() if n)


def quiet(chromium: browser.Browser, path: Path) -> None:
    assert not chromium.complaints
    assert {u for u in chromium.requests if not u.startswith("data:")} <= {
        "about:blank",
        path.as_uri(),
    }


def fits(chromium: browser.Browser) -> None:
    """Nothing is wider than its place."""
    whole = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert chromium.run(whole) <= 0
    wide = "[...document.querySelectorAll('.box')].filter((b) => b.scrollWidth > b.clientWidth + 1)"
    assert chromium.run(f"{wide}.length") == 0


def test_a_real_program(chromium: browser.Browser, small_program: Any, tmp_path: Path) -> None:
    found = form("small", small_program)
    assert found["segments"] and found["progress"] and found["roofline"]
    path = write(tmp_path, found)
    chromium.requests.clear()
    chromium.open(path)
    click_through(chromium, found)
    text = chromium.run("document.body.innerText")
    for part in ("small", "Best time and bound", "saturate", "segment 0", "e-classes", "x0 is x"):
        assert part in text, part
    drawn = "[...document.querySelectorAll('.node text')].map((t) => t.textContent)"
    assert {"input x0", "weight w0", "sum over axis 1"} <= set(chromium.run(drawn))
    assert chromium.run("document.querySelectorAll('.edge').length") >= 8
    fits(chromium)
    quiet(chromium, path)


def test_many_kernels(chromium: browser.Browser, tmp_path: Path) -> None:
    found = large()
    path = write(tmp_path, found)
    chromium.requests.clear()
    chromium.open(path)
    for width in WIDTHS:
        chromium.resize(width)
        fits(chromium)
    click_through(chromium, found)
    assert chromium.run("document.querySelectorAll('.flow button').length") == 3
    assert "× 29" in chromium.run("document.querySelector('.flow').textContent")
    assert chromium.run("document.querySelectorAll('.bar > [title^=k]').length") > 100
    quiet(chromium, path)
    if folder := os.environ.get("LAMBENT_PICTURES"):
        for dark in (False, True):
            chromium.open(path, height=2400, dark=dark)
            chromium.picture(Path(folder) / f"large-{'dark' if dark else 'light'}.png")


def test_dark_is_dark(chromium: browser.Browser, tmp_path: Path) -> None:
    path = write(tmp_path, large())
    light = {}
    for dark in (False, True):
        chromium.open(path, dark=dark)
        color = chromium.run("getComputedStyle(document.body).backgroundColor")
        light[dark] = sum(int(part) for part in color[4:-1].split(","))
    assert light[True] < 200 < 600 < light[False]


def test_keys(chromium: browser.Browser, tmp_path: Path) -> None:
    chromium.open(write(tmp_path, large()))
    chosen = "document.querySelector('.box[aria-pressed=true]').dataset.kernel"
    assert chromium.run(chosen) == "k0"
    chromium.run("document.querySelector('.box').focus()")
    chromium.key("ArrowDown")
    focused = chromium.run("document.activeElement.dataset.kernel")
    assert focused != "k0" and chromium.run(chosen) == "k0"
    chromium.run("document.activeElement.click()")
    assert chromium.run(chosen) == focused
    chromium.run("document.querySelector('[role=tab][aria-selected=true]').focus()")
    before = chromium.run("document.activeElement.textContent")
    chromium.key("ArrowRight" if before != TABS[-1] else "ArrowLeft")
    assert chromium.run("document.activeElement.getAttribute('aria-selected')") == "true"
    assert chromium.run("document.activeElement.textContent") != before
    chromium.key("Tab")
    assert chromium.run("document.activeElement.id") == "panel"


def test_what_is_not_known_is_said(
    chromium: browser.Browser, tmp_path: Path, stand_in: Any
) -> None:
    """Programs saved by an earlier version tell less; those that tell nothing are shown too."""
    for told in (stand_in.told, {}):
        found = form("old", type("Program", (), {"explain": lambda self, told=told: told})())
        chromium.open(write(tmp_path, found))
        text = chromium.run("document.body.innerText")
        assert "not recorded" in text and "NaN" not in text and "undefined" not in text
    assert not chromium.complaints


def test_the_page_stands_alone(tmp_path: Path) -> None:
    text = page(large())
    for forbidden in ("http://", "https://", "url(", "@import", '<link rel="stylesheet'):
        assert forbidden not in text.replace("http://www.w3.org/2000/svg", ""), forbidden
    assert text.count("</script>") == 2  # its own: none of what kernels say
    assert "default-src 'none'" in text and "{{" not in text and len(SCRIPTS) == 5


def test_the_command(
    call: Any, small: Any, tmp_path: Path, monkeypatch: Any, stand_in: Any
) -> None:
    path = tmp_path / "out.html"
    code, out, err = call("explain", "attention", "--html", str(path))
    assert code == 0 and not out and str(path) in err
    assert path.read_text("utf-8").startswith("<!doctype html>")
    saved = tmp_path / "p.lambent"
    saved.write_text("x")
    monkeypatch.setattr(save, "load", lambda path: stand_in(small["gelu"]))
    code, _, err = call("explain", str(saved), "--html", str(tmp_path / "no" / "p.html"))
    assert code == 2 and "no folder" in err


def test_a_program_tells_of_its_search(small_program: Any, tmp_path: Path) -> None:
    told = small_program.explain()
    assert told["progress"][-1][1] > 0
    assert [i["inputs"] for i in told["instances"]] == [["x"]]
    for k in told["kernels"]:
        assert k["bytes_written"] > 0 and k["reads"] and k["writes"]
        times = [r["ms"] for r in k["rejected"] if r["what"] == "schedule" and r["ms"]]
        assert times == sorted(times) and len(k["rejected"]) <= 20
        assert k["schedule"] not in [r["name"] for r in k["rejected"]]
    assert any(k["rejected"] for k in told["kernels"])
    assert sum(k["operations"] for k in told["kernels"]) >= 2 * 48 * 64 * 32
    small_program.save(tmp_path / "p")
    assert lt.load(tmp_path / "p").explain()["kernels"] == told["kernels"]
