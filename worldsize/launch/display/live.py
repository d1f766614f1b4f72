"""The live view of a run in JupyterLab: a line of state per rank, tabs of output, a clock, a stop button.

While the run lasts it is made of widgets; at the end a static view in HTML and plain text replaces them, so that a
saved notebook shows the same without a kernel.
"""

from __future__ import annotations

import html
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from worldsize.launch.display.output import Lines, Tail
from worldsize.launch.display.view import Plain, Ranks, View

_PATIENCE_S = 0.4  # a shorter run gets no widgets
_PERIOD_S = 0.25
_LIVE_CHARACTERS, _STATIC_CHARACTERS = 8_000, 20_000  # of each tab
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PRE = (
    "margin:0;padding:6px;max-height:18em;overflow:auto;white-space:pre-wrap;line-height:1.35;"
    "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px)"
)


def choose_view(echo: bool) -> View:
    """Return the view that suits this process: live in JupyterLab, plain lines elsewhere, none without `echo`."""
    if not echo:
        return View()
    return Live() if _is_wanted() else Plain()


def _is_wanted() -> bool:
    """Whether a Jupyter server started this kernel for a notebook; False under papermill, nbclient and nbgrader."""
    asked = os.environ.get("WORLDSIZE_VIEW", "")
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if asked == "plain" or not hasattr(shell, "kernel") or threading.current_thread() is not threading.main_thread():
        return False
    return asked == "live" or "JPY_SESSION_NAME" in os.environ


class Live(View):
    """Widgets while the run lasts, then a static view."""

    def __init__(self) -> None:
        self.is_stop_asked = False
        self._start_s = self._shown_s = time.monotonic()
        self._headline = ""
        self._all = Tail()
        self._lines: dict[int, Lines] = {}
        self._widgets: _Widgets | None = None
        self._has_ended = False

    def begin(self, headline: str) -> None:
        """Store the headline."""
        self._headline = headline

    def output(self, rank: int, text: str) -> None:
        """Add whole lines to the tab of all ranks; the tabs of single ranks are read when they are shown."""
        self._add(rank, self._lines.setdefault(rank, Lines()).feed(text))

    def _add(self, rank: int, lines: list[str]) -> None:
        if lines:
            self._all.feed("".join(f"[rank {rank}] {line}\n" for line in lines).encode("utf-8", "replace"))

    def glance(self, ranks: Ranks) -> None:
        """Update the widgets, four times a second."""
        now_s = time.monotonic()
        if now_s - self._start_s < _PATIENCE_S or now_s - self._shown_s < _PERIOD_S:
            return
        self._shown_s = now_s
        if self._widgets is None:
            self._widgets = _Widgets(self._stop)
        self._widgets.show(self._head(ranks), self._states(ranks), self._outputs(ranks, _LIVE_CHARACTERS))

    def _stop(self, _button: Any) -> None:
        self.is_stop_asked = True

    def end(self, ranks: Ranks) -> None:
        """Replace the widgets with the static view."""
        if self._has_ended:
            return
        self._has_ended = True
        for rank, lines in self._lines.items():
            self._add(rank, lines.end())
        head, states, outputs = self._head(ranks), self._states(ranks), self._outputs(ranks, _STATIC_CHARACTERS)
        bundle = {"text/html": _static_html(head, states, outputs), "text/plain": _static_text(head, states, outputs)}
        if self._widgets:
            self._widgets.replace(bundle)
        else:
            from IPython.display import display

            display(bundle, raw=True)

    def _head(self, ranks: Ranks) -> str:
        again = f", {ranks.restarts} restart{'s' * (ranks.restarts != 1)}" if ranks.restarts else ""
        return f"{self._headline or 'Ranks are starting'} ({time.monotonic() - self._start_s:.1f} s{again})"

    def _states(self, ranks: Ranks) -> list[str]:
        warnings = [f"Warning: {warning}" for warning in ranks.warnings]
        if self._has_ended and all(state == "done" for _, state in ranks.states):
            return warnings
        return [*(f"rank {rank}: {state}" for rank, state in ranks.states), *warnings]

    def _outputs(self, ranks: Ranks, num_characters: int) -> dict[str, str]:
        """The last characters of the output by tab title; empty if no rank printed anything."""
        tails = {"all": self._all} | {f"rank {rank}": tail for rank, tail in sorted(ranks.tails.items())}
        texts = {title: _ANSI.sub("", tail.last(num_characters)) for title, tail in tails.items()}
        return texts if any(texts.values()) else {}


class _Widgets:
    """The widgets in the cell while the run lasts."""

    def __init__(self, stop: Any) -> None:
        import ipywidgets
        from IPython.display import display

        self._head, self._states = ipywidgets.HTML(), ipywidgets.HTML()
        button = ipywidgets.Button(description="Stop", icon="stop", tooltip="End all ranks of this run")
        button.layout.width = "6em"
        button.on_click(stop)
        _hear_clicks(button.comm, lambda: stop(button))
        self._tabs = ipywidgets.Tab()
        self._pages: dict[str, Any] = {}
        self._page = ipywidgets.HTML
        row = ipywidgets.HBox([button, self._head])
        box = ipywidgets.VBox([row, self._states, self._tabs])
        self._frame = (box, row, button)
        self._handle = display(box, display_id=uuid.uuid4().hex)

    def show(self, head: str, states: list[str], outputs: dict[str, str]) -> None:
        """Send the front end what has changed."""
        self._head.value = html.escape(head)
        self._states.value = _states_html(states)
        for title, text in outputs.items():
            if title not in self._pages:
                self._pages[title] = self._page()
                self._tabs.children = tuple(self._pages.values())
                self._tabs.titles = tuple(self._pages)
            self._pages[title].value = f'<pre style="{_PRE}">{html.escape(text)}</pre>'
        if self._pages and self._tabs.selected_index is None:
            self._tabs.selected_index = 0

    def replace(self, bundle: dict[str, str]) -> None:
        """Replace the widgets with the bundle and close them."""
        if self._handle is not None:
            self._handle.update(bundle, raw=True)
        for widget in (*self._frame, self._tabs, *self._pages.values(), self._states, self._head):
            widget.close()


def _hear_clicks(comm: Any, act: Callable[[], None]) -> None:
    """Call `act` upon each click that reaches a button's comm, also while the main thread is busy with a run.

    A front end can ask that another thread (a subshell) handle a click, but only once it has one. ipykernel 7.4's
    thread that receives messages asks every comm where to send its own, so the click is seen there.
    """

    def choose_subshell(data: Any, asked: str | None) -> str | None:
        content = data.get("content") if isinstance(data, dict) else None
        if isinstance(content, dict) and content.get("event") == "click":
            act()
        return asked

    vars(comm)["_reply_subshell_for"] = choose_subshell


def _states_html(states: list[str]) -> str:
    return "".join(f'<div style="line-height:1.5;white-space:pre-wrap">{html.escape(state)}</div>' for state in states)


def _static_html(head: str, states: list[str], outputs: dict[str, str]) -> str:
    """Tabs made of radio buttons and CSS; without style sheets they read as titled texts one after the other."""
    name = f"ws{uuid.uuid4().hex[:8]}"
    parts = [f'<div class="{name}"><div>{html.escape(head)}</div>{_states_html(states)}']
    rules = [f".{name} h6,.{name} pre,.{name} input{{display:none}}", f".{name} label{{{_LABEL}}}"]
    for number, title in enumerate(outputs):
        checked = " checked" * (number == 0)
        parts.append(f'<input type="radio" name="{name}" id="{name}-{number}"{checked}>')
        parts.append(f'<label for="{name}-{number}" tabindex="0">{html.escape(title)}</label>')
        rules.append(f"#{name}-{number}:checked~#{name}-p{number}{{display:block}}")
        rules.append(f"#{name}-{number}:checked+label{{border-color:currentColor}}")
    for number, (title, text) in enumerate(outputs.items()):
        parts.append(f"<h6>{html.escape(title)}</h6>")
        parts.append(f'<pre id="{name}-p{number}" style="{_PRE}">{html.escape(text)}</pre>')
    return f"<style>{''.join(rules)}</style>{''.join(parts)}</div>"


_LABEL = "display:inline-block;padding:2px 10px;cursor:pointer;border-bottom:2px solid transparent"


def _static_text(head: str, states: list[str], outputs: dict[str, str]) -> str:
    return "\n".join([head, *states, outputs.get("all", "").rstrip("\n")]).rstrip("\n")
