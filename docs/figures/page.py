"""The page in a real browser: everything that it does is done and looked at, and pictures are taken.

    python docs/figures/page.py [--to FOLDER]

It starts `eagle-jax ui` on the toy pair with an API key, and drives Debian's Chromium (`apt-get install chromium`),
or what CHROMIUM names, through playwright (`pip install playwright`; its own browsers are not needed). The pictures
look best where the fonts Inter and Noto Serif are installed (`fonts-inter`, `fonts-noto-core`).
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

HERE = pathlib.Path(__file__).parent
KEY = "a key"
MOST_BYTES = 200_000
SECONDS = 240  # that compiling may take on a busy machine


def chromium() -> str | None:
    """The browser, if there is one."""
    named = os.environ.get("CHROMIUM") or "chromium"
    return shutil.which(named) or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The address of `eagle-jax ui` on a free port."""
    command = [
        sys.executable,
        "-m",
        "eagle_jax",
        "ui",
        "--target",
        "toy",
        "--port",
        "0",
        "--tree",
        "published",
        "--max-tokens",
        "1024",
    ]
    environment = os.environ | {"EAGLE_JAX_API_KEY": KEY, "COLUMNS": "200"}
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        address = next((found[0] for line in lines if (found := re.findall(r"http://\S+/ui", line))), None)
        if address is None:
            raise RuntimeError(f"the server ended with status {running.wait()}")
        yield address
    finally:
        running.terminate()
        running.communicate()


class Story:
    """One window on the page, and what was asked of the network in it."""

    def __init__(self, browser: Browser, address: str, folder: pathlib.Path, **look: object):
        self.address, self.folder = address, folder
        self.context: BrowserContext = browser.new_context(**look)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(1000 * SECONDS)
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked(request.url))
        self.page.goto(address)
        expect(self.page.get_by_role("dialog")).to_be_visible()
        self.page.get_by_label("API key").fill(KEY)
        self.page.keyboard.press("Enter")
        expect(self.page.locator("body.ready")).to_be_visible()
        self.said.clear()  # that the key was missing at first

    def asked(self, url: str) -> None:
        assert url.startswith(self.address.removesuffix("/ui")), f"{url} is elsewhere"

    def end(self) -> None:
        assert not self.said, self.said
        self.context.close()

    def picture(self, name: str) -> None:
        path = self.folder / f"{name}.png"
        self.page.screenshot(path=path)
        assert path.stat().st_size < MOST_BYTES, f"{path} has {path.stat().st_size} bytes"

    def send(self, text: str) -> None:
        self.page.get_by_label("Message").fill(text)
        self.page.keyboard.press("Enter")

    def answer(self, at: int = -1) -> str:
        """An answer, once all of it is there."""
        expect(self.page.get_by_role("button", name="Send")).to_be_visible(timeout=1000 * SECONDS)
        return self.page.locator(".assistant .said").nth(at).inner_text()

    def option(self, name: str, value: str) -> None:
        self.page.get_by_label(name, exact=True).fill(value)


def chat(story: Story) -> None:
    """Sends, reads along, looks at a tree, decodes plainly, samples anew, clears."""
    page = story.page
    page.get_by_role("button", name=re.compile("^Tim works")).click()
    page.locator(".guessed").first.wait_for()  # it streams
    drafted = story.answer()
    marked = page.locator(".assistant .guessed").count()
    assert marked > page.locator(".assistant .own").count(), "most tokens were guessed"
    assert float(page.locator("#length").inner_text()) > 3
    assert re.search(
        r"\d+ tokens · \d+ passes of \d\.\d\d · [\d.]+ tokens a second", page.locator(".assistant .foot").inner_text()
    )
    page.locator(".assistant .pass").nth(5).click()
    expect(page.locator("#which")).to_have_text(re.compile(r"^Pass 5 of \d+: \d+ of \d+ guesses accepted$"))
    assert page.locator("#drawing rect").count() > 40 and page.locator("#drawing rect.taken").count() > 1
    guessed = page.locator(".pass.looked-at .guessed").all_inner_texts()
    path = page.locator("#drawing text.taken").all_text_contents()
    assert len(path) == len(guessed), (path, guessed)
    page.mouse.move(0, 0)
    story.picture("page")
    page.get_by_role("button", name="The pass after").press("Enter")
    expect(page.locator("#which")).to_have_text(re.compile("^Pass 6 of"))

    page.get_by_role("button", name="Clear").click()
    page.get_by_role("switch").uncheck()
    page.get_by_role("button", name=re.compile("^Tim works")).click()
    assert story.answer() == drafted, "the same text without a draft"
    assert page.locator(".guessed").count() == 0 and page.locator("#length").inner_text() == "1.00"
    assert page.locator("#figure").is_hidden()
    page.get_by_role("switch").check()

    story.option("Temperature", "1")
    page.get_by_role("button", name="Regenerate").click()
    sampled = story.answer()
    assert page.get_by_label("Seed").input_value() == "1" and page.locator(".assistant").count() == 1
    page.get_by_role("button", name="Regenerate").click()
    assert story.answer() != sampled, "another seed, another text"


def stop(story: Story) -> None:
    """Ends a long answer in the middle, and goes on from there."""
    page = story.page
    page.get_by_role("button", name="Clear").click()
    story.option("Temperature", "2")
    story.option("Longest answer", "900")
    story.send("Tell me about <b>rivers</b> & <img src=x onerror=alert(1)>.")
    page.locator(".assistant .pass").nth(6).wait_for()
    page.get_by_role("button", name="Stop").click()
    story.answer()
    expect(page.locator(".assistant .foot").last).to_have_text(re.compile(r"^stopped after \d+ tokens$"))
    assert page.locator(".user .said").inner_text().endswith("<img src=x onerror=alert(1)>.")
    assert page.locator("#talk img, #talk b").count() == 0, "text is text"
    story.option("Temperature", "0")
    story.option("Longest answer", "100")
    story.send("And what is 3 and 4?")
    assert story.answer() and page.locator(".assistant").count() == 2
    story.option("Longest answer", "4000")
    story.send("Too long.")
    expect(page.get_by_role("alert").first).to_have_text(re.compile(r"so ask for at most \d+$"))
    assert page.get_by_label("Message").input_value() == "Too long." and page.locator(".user").count() == 2
    story.option("Longest answer", "160")


def race(story: Story, picture: str) -> None:
    """Stops a race, and runs another one to its verdict."""
    page = story.page
    page.get_by_role("tab", name="Race").click()
    page.get_by_label("Prompt of the race").fill("Sam buys 3 packs of 12 pencils. How many pencils does he have?")
    page.keyboard.press("Enter")
    page.locator("#lane-plain .pass").nth(2).wait_for()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#verdict")).to_have_text("Stopped.")
    page.get_by_role("button", name="Race").click()
    expect(page.locator("#verdict")).to_have_text(
        re.compile(r"^Identical text\. \d+ tokens, one by one the same, "), timeout=1000 * SECONDS
    )
    plain, drafted = (page.locator(f"#lane-{lane} .said").inner_text() for lane in ("plain", "drafted"))
    assert plain == drafted != ""
    assert page.locator("#lane-plain .guessed").count() == 0 < page.locator("#lane-drafted .guessed").count()
    story.picture(picture)


def narrow(story: Story) -> None:
    """Fits a telephone."""
    page = story.page
    page.get_by_role("button", name=re.compile("^A shirt")).click()
    assert story.answer()
    page.locator(".assistant .pass").nth(3).click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    story.picture("page-narrow")


def keyboard(story: Story) -> None:
    """Everything is reached without a mouse."""
    page = story.page
    reached: set[str] = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    wanted = {"skip", "to-chat", "drafting", "drafter", "tree", "temperature", "top_p", "max_tokens", "seed"}
    assert wanted | {"message", "send", "suggestion"} <= reached, reached
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Race")).to_be_focused()
    expect(page.locator("#race")).to_be_visible()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=pathlib.Path, default=HERE, help="where the pictures go")
    folder = parser.parse_args().to
    with server() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        desk = {"viewport": {"width": 1280, "height": 860}}
        light = Story(browser, address, folder, **desk)
        keyboard(light)
        light.page.get_by_role("tab", name="Chat").click()
        chat(light)
        stop(light)
        race(light, "race")
        light.end()
        dark = Story(browser, address, folder, **desk, color_scheme="dark", reduced_motion="reduce")
        race(dark, "race-dark")
        dark.end()
        phone = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True}
        telephone = Story(browser, address, folder, **phone)
        narrow(telephone)
        telephone.end()
        browser.close()
    print(f"all of it works; pictures are in {folder}")


if __name__ == "__main__":
    main()
