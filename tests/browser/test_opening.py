"""What `make lab` shows first."""

import pytest
from playwright.sync_api import expect

WEEK = "weeks/week01_why_one_gpu_is_not_enough.ipynb"
pytestmark = pytest.mark.browser


def test_week_1_is_in_front_and_nothing_asks_for_attention(open_notebook, lab, screenshots):
    page = open_notebook(WEEK, lab.first_page).page
    expect(page.get_by_role("heading", name="Week 1. Why one GPU is not enough")).to_be_visible()
    page.screenshot(path=screenshots / "opened.png")
    assert page.locator(".jp-Dialog, .Toastify__toast").all_inner_texts() == []
    expect(page.locator(".jp-Notification-Status")).to_have_text("0")

    page.locator(".jp-BreadCrumbs-home").click()
    for folder in ("labs", "quizzes", "weeks"):
        expect(page.locator(".jp-DirListing-content")).to_contain_text(folder)
    assert lab.errors() == []
