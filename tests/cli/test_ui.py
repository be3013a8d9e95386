"""`eagle-jax ui`: what it starts, and what it says."""


def test_it_says_where_the_page_is(fake, run):
    shown = run("ui", "--port", "8080", "--tree", "6,3,2", "--open", "--name", "mine", "--api-key", "k")
    assert (shown.exit_code, shown.stdout) == (0, ""), shown.stderr
    assert "http://127.0.0.1:8080/ui" in shown.stderr and fake.opened == ["http://127.0.0.1:8080/ui"]
    drafting = dict(drafter="auto", tree=(6, 3, 2))
    assert fake.engines == [dict(rows=2, max_tokens=None, steps=1, record=True, **drafting), "closed"]
    ((names, served),) = fake.served
    assert (names, served) == (["mine"], {"api_key": "k", "routes": ["a route"]})
    (page,) = fake.pages
    assert page.pop("device") and page == {"name": "mine", **drafting}


def test_it_warns_of_open_doors_and_opens_nothing_unasked(fake, run):
    assert "there is no --api-key" in run("ui", "--host", "0.0.0.0").stderr and not fake.opened


def test_without_a_target_it_shows_the_default_one(fake, run):
    run("ui")
    run("ui", "--target", "other")
    assert [target for target, _, _ in fake.loads] == ["smollm2-135m-instruct", "other"]
