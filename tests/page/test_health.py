"""The server's health in the page: plots, their newest values, what is served."""

from __future__ import annotations

import httpx

from .browser import Page
from .test_programs import wait_for_paint


def test_plots_show_the_points_that_the_server_has(page: Page, home: str, url: str) -> None:
    httpx.post(f"{url}/v1/completions", json={"model": "x", "prompt": "Once", "max_tokens": 30, "ignore_eos": True})
    page.goto(home + "#/health")
    page.wait("document.querySelectorAll('.chart').length === 8")
    assert page.texts(".plot h3") == [
        "Throughput",
        "Time to first token",
        "Time between tokens",
        "Requests",
        "KV cache",
        "Hit rate",
        "Acceptance",
        "Events",
    ]
    page.wait("/running\\s*\\d/.test(document.querySelectorAll('.plot')[3].innerText)")
    for index in range(8):
        page.wait(f"!!document.querySelectorAll('.chart')[{index}]?.width")
    wait_for_paint(page, ".chart", colours=1)
    # Each plot says its newest values without sight of the picture.
    labels = page.eval("[...document.querySelectorAll('.plot')].map((one) => one.ariaLabel)")
    assert all("now" not in label and ":" in label for label in labels)


def test_the_model_and_the_flags_that_differ_are_listed(page: Page, home: str, url: str) -> None:
    about = httpx.get(f"{url}/v1/ramiform/about").json()
    page.goto(home + "#/health")
    page.wait("!!document.querySelector('.served')")
    model, flags = page.texts(".served .panel")
    for shown in (
        about["version"],
        about["model"]["name"],
        f"{about['model']['num_pages']:,}",
        about["model"]["dtype"],
    ):
        assert shown in model
    for name, value in about["flags"].items():
        assert name in flags
        assert str(value) in flags


def test_the_plots_follow_the_theme_and_the_width(page: Page, home: str) -> None:
    page.prefer(scheme="dark")
    page.resize(360, 740, is_phone=True)
    page.goto(home + "#/health")
    page.wait("document.querySelectorAll('.chart').length === 8")
    page.wait("document.querySelector('.chart').clientWidth <= 340")
    assert page.eval("document.documentElement.scrollWidth") <= 360
    page.resize(1280, 800)
    page.wait("document.querySelector('.plots').clientWidth > 1000")
    page.wait("document.querySelector('.chart').clientWidth < 640")
