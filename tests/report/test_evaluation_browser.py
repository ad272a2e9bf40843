"""Tests of the page in a browser: no errors, working controls, and numbers equal to NumPy's."""

import os
import shutil

import numpy as np
import pytest
from scipy.special import softmax

import calibrant
from calibrant.selective import threshold_for_risk, uniform_risk_bound

REQUIRED = os.environ.get("CALIBRANT_BROWSER") == "required"
CHROMIUM = os.environ.get("CALIBRANT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

if REQUIRED:
    from playwright.sync_api import sync_playwright
else:
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        if REQUIRED:
            pytest.fail("CALIBRANT_BROWSER=required, and there is no chromium; install Debian's package chromium.")
        pytest.skip("there is no chromium; install Debian's package chromium, or set CALIBRANT_CHROMIUM")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


def predictions(n_classes, n=1500):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(n, n_classes)) * 2
    return softmax(1.8 * truth, axis=1), (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page; the test fails if the page reports an error."""
    complaints, contexts = [], []

    def open_page(result, rule=None, **context):
        path = tmp_path / "page.html"
        result.to_html(path, rule=rule)
        contexts.append(browser.new_context(**context))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def shown(page):
    """The four numbers of the reject option, as fractions."""
    return {
        name: float(page.inner_text(f"#{name}").removesuffix(" %")) / 100
        for name in ("coverage", "accuracy", "avoided", "bound")
    }


def expected(score, right, low, high):
    """The same by NumPy: accepted where score ≥ high or score ≤ low."""
    kept = (score >= high) | (score <= low)
    bound = uniform_risk_bound(score, right, level=0.95).risk(low, high)
    avoided = (~right & ~kept).sum() / (~right).sum()
    return {"coverage": kept.mean(), "accuracy": right[kept].mean(), "avoided": avoided, "bound": bound}


def agrees(page, score, right, low, high):
    measured, wanted = shown(page), expected(score, right, low, high)
    for name, value in wanted.items():
        assert measured[name] == pytest.approx(value, abs=0.00051), name


def test_the_threshold_moves_by_keyboard_slider_and_mouse(opened):
    probs, labels = predictions(3)
    score, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    page = opened(calibrant.evaluate(probs, labels, n_resamples=20))
    limits = np.array(page.evaluate("JSON.parse(document.getElementById('data').textContent)[0].reject.limits"))
    agrees(page, score, right, -np.inf, limits[0])

    slider = page.locator("#high")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert slider.input_value() == "3"
    agrees(page, score, right, -np.inf, limits[3])
    page.keyboard.press("End")
    agrees(page, score, right, -np.inf, limits[-1])
    slider.fill("400")
    agrees(page, score, right, -np.inf, limits[400])

    box = page.locator("#histogram").bounding_box()
    place = box["x"] + 12 + (box["width"] - 24) * 0.9
    page.mouse.move(place - 120, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(place, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    high = limits[int(slider.input_value())]
    assert high == pytest.approx(0.9, abs=0.01)
    agrees(page, score, right, -np.inf, high)

    page.locator("#low").fill("20")
    agrees(page, score, right, limits[20], high)
    page.locator("#low").fill(str(len(limits) - 1))
    assert int(slider.input_value()) > int(page.locator("#low").input_value()), "the limits never cross"


def test_wrong_predictions_fill_their_share_of_a_bar(opened):
    page = opened(calibrant.evaluate(*predictions(3), n_resamples=20))
    counts = page.evaluate("(({ histogram, histogramWrong }) => [histogram, histogramWrong])"
                           "(JSON.parse(document.getElementById('data').textContent)[0].reject)")  # fmt: skip
    heights = "(kind) => [...document.querySelectorAll(kind)].map((bar) => Number(bar.getAttribute('height')))"
    bars, wrong = (page.evaluate(heights, f"#histogram .bar{kind}") for kind in (":not(.wrong)", ".wrong"))
    for total, errors, bar, orange in zip(*counts, bars, wrong, strict=True):
        assert orange == pytest.approx(bar * errors / total if total else 0, abs=1e-6)


def test_two_classes_have_a_window_around_one_half(opened):
    probs, labels = predictions(2)
    score, right = probs[:, 1], probs.argmax(axis=1) == labels
    page = opened(calibrant.evaluate(probs, labels, n_resamples=20))
    limits = np.array(page.evaluate("JSON.parse(document.getElementById('data').textContent)[0].reject.limits"))
    assert shown(page)["coverage"] == 1
    low, high = int(np.searchsorted(limits, 0.3)), int(np.searchsorted(limits, 0.8))
    page.locator("#high").fill(str(high))
    page.locator("#low").fill(str(low))
    agrees(page, score, right, limits[low], limits[high])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_limits_start_at_the_rule_of_the_model(n_classes, opened):
    probs, labels = predictions(n_classes)
    right = probs.argmax(axis=1) == labels
    rule = threshold_for_risk(probs.max(axis=1), right, 0.1)
    threshold = rule.window.high
    score, low = (probs[:, 1], 1 - threshold) if n_classes == 2 else (probs.max(axis=1), -np.inf)
    page = opened(calibrant.evaluate(probs, labels, n_resamples=20), rule=rule)
    agrees(page, score, right, low, threshold)
    assert shown(page)["coverage"] == pytest.approx(rule.accepts(probs.max(axis=1)).mean(), abs=0.00051)
    assert "own rejection rule" in page.inner_text("#rule-text")
    page.locator("#high").focus()
    page.keyboard.press("End")
    assert shown(page)["coverage"] < 0.5
    page.locator("#own-rule").click()
    agrees(page, score, right, low, threshold)


def test_two_classes_show_the_reliability_of_a_probability(opened):
    probs, labels = predictions(2)
    page = opened(calibrant.evaluate(probs, labels, classes=["no", "yes"], n_resamples=20))
    assert "probability of yes" not in page.inner_html("#reliability-figure")
    page.locator("input[value=positive]").check()
    assert "share of yes" in page.text_content("#reliability-figure")
    assert "mean probability of yes" in page.inner_text("#reliability-caption")
    first = page.text_content("#reliability-figure .bar.under title, #reliability-figure .bar.over title")
    inside = probs[:, 1] <= 1 / 15
    assert first.startswith(f"probability of yes {100 * probs[inside, 1].mean():.1f} %, share of yes ")
    assert f"share of yes {100 * (labels[inside] == 1).mean():.1f} %" in first


def test_all_models_are_in_the_reliability_figure(opened):
    probs, labels = predictions(3)
    models = {"before": probs, "after": softmax(np.log(probs) / 2, axis=1)}
    page = opened(calibrant.evaluate(models, labels, n_resamples=20))
    after = page.evaluate("JSON.parse(document.getElementById('data').textContent)[1].curves.confidence.binned.length")
    for curve, points in (("binned", after), ("smooth", 0), ("corp", 0)):
        page.locator(f"input[value={curve}]").check()
        assert page.locator("#reliability-figure circle").count() == points
        assert page.locator("#reliability-figure path.other-1").count() == 2, "one in the legend"
        assert "beforeafter" in page.text_content("#reliability-figure")
    page.locator("#model").select_option(label="after")
    assert page.locator("#reliability-figure path.other-0").count() == 2


def test_a_wide_table_says_so_on_a_phone(opened):
    result = calibrant.evaluate(*predictions(3), n_resamples=20)
    page = opened(result, viewport={"width": 390, "height": 800})
    table = page.locator("details[open] .scroll").first
    faded = page.locator("details[open] .scroll.more").first
    assert page.locator(".hint:visible").count() >= 2
    assert faded.count() == 1
    table.evaluate("(box) => box.scrollTo(box.scrollWidth, 0)")
    page.wait_for_function("(box) => !box.classList.contains('more')", arg=table.element_handle())
    page.emulate_media(media="print")
    assert page.locator(".hint:visible").count() == 0
    assert opened(result, viewport={"width": 1200, "height": 800}).locator(".hint:visible").count() == 0


def test_curves_and_models_can_be_chosen_on_a_dark_phone(opened):
    probs, labels = predictions(3)
    sharper = softmax(2 * np.log(probs), axis=1)
    result = calibrant.evaluate({"one": probs, "two": sharper}, labels, n_resamples=20)
    page = opened(result, viewport={"width": 390, "height": 800}, color_scheme="dark")
    drawings = set()
    for curve in ("binned", "smooth", "corp"):
        page.locator(f"input[value={curve}]").check()
        drawings.add(page.inner_html("#reliability-figure"))
    assert len(drawings) == 3
    page.locator("#model").select_option(label="two")
    assert page.inner_html("#reliability-figure") not in drawings
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "a phone need not scroll sideways"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(int(part) for part in background.removeprefix("rgb(").removesuffix(")").split(",")) < 150
    page.locator("thead th button").first.click()
    page.emulate_media(media="print")
    assert page.locator("#high").is_hidden()
