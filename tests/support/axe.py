"""Accessibility checks with axe-core, from axe-playwright-python, on a page that is open in a browser."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def serious(page: Page) -> list[str]:
    """A line for each rule that axe-core calls serious or critical and that the page breaks, with the first place."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{one['id']}, {one['impact']}, {len(one['nodes'])} times: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
