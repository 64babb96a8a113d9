"""The web pages, in a browser. What takes long is left to `make test-long`."""

import dataclasses
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from api_samples import INIT, KEY, MODEL, Events, change, hand_over, serving
from browser import Browser, browser
from page_screens import MAX_DIFFERENCE, difference_of
from support.tangle_samples import ALL, DEFINITION, ROOT, THREAD
from support.time_events import time_event
from test_api_undelivered import CHAIN

from recon_node.anchoring.anchoring_service import Anchoring, open_anchoring
from recon_node.anchoring.settings import AnchorSettings
from recon_node.api.endpoint import Services
from recon_node.api.settings import Access
from recon_node.ceramic import network_range
from recon_node.ceramic.builder import init_event, model_event
from recon_node.chain import ChainSettings, open_anchors
from recon_node.dag.dag_events import shard_event
from recon_node.dag.dag_service import open_dags
from recon_node.dag.dag_source import DagSource, open_source
from recon_node.dag.protocol.shards import split, walk
from recon_node.ipld import multibase
from recon_node.p2p import Counters, PeerInfo, SyncReport
from recon_node.recon import KeyRange
from recon_node.store import Store
from recon_node.tangles.index import open_tangles

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
ADDRESS = f"/ip4/192.0.2.1/tcp/4101/p2p/{PEER}"
TOKEN = "0123456789abcdef"
AXE = Path(__file__).parent / "axe" / "axe.min.js"
READY = (
    "document.querySelector('main h1') !== null && !document.querySelector('main .loading')"
    " && !document.querySelector('main h1').textContent.includes('Loading')"
)
UNCUT = (
    "[...document.querySelectorAll('.scroll')]"
    ".every((box) => box.scrollWidth <= box.clientWidth + 1)"
)
"""Whether every table is seen whole."""
REACHABLE = """((inside) => [...inside(document, inside)].filter((each) =>
    each.tabIndex >= 0 && !each.disabled && each.checkVisibility()))(function* (root, inside) {
        for (const each of root.querySelectorAll("*")) {
            yield each;
            if (each.shadowRoot) yield* inside(each.shadowRoot, inside);
        }
    })"""
"""All that takes part in the order of the Tab key."""
TIME = ChainSettings(development_time=True)
ANCHORS = AnchorSettings(authority="development", interval=60)
STREAM = str(INIT.stream_id())


def sync(finished_at: float, sent: int = 0) -> SyncReport:
    numbers = dict.fromkeys(("bytes_sent", "bytes_received", "event_bytes_received"), 87)
    return SyncReport(
        peer=PEER,
        role="responder",
        protocol="/ceramic/recon/1.2.0",
        rounds=3,
        event_bytes_sent=1000 * sent,
        keys_received=0,
        events_received=0,
        events_sent=sent,
        keys_left_out=0,
        keys_left_out_by_peer=0,
        seconds=0.25,
        outcome="agreed",
        finished_at=finished_at,
        **numbers,
    )


Shown = Callable[[Services], AbstractAsyncContextManager[tuple[Browser, str, list[SyncReport]]]]


@pytest.fixture
def shown(chromium: str) -> Shown:
    """Shows a node: a browser, and the address of the node, whose syncs are those of a list."""
    return partial(_shown, chromium)


@asynccontextmanager
async def _shown(
    chromium: str, services: Services
) -> AsyncIterator[tuple[Browser, str, list[SyncReport]]]:
    syncs = [sync(1_800_000_000.0, sent=930)]
    peers: Any = SimpleNamespace(
        peer_id=PEER,
        addresses=[ADDRESS] * 3,
        removed=[],
        sync_reports=syncs,
        transfers=syncs[:1],
        counters=Counters(),
        rendezvous=lambda: [],
        interests_of=lambda _: [KeyRange(*network_range(services.store.network))],
        peers=lambda: [
            PeerInfo(PEER, (ADDRESS,), True, 0.01, syncs[-1].finished_at, 0, ("recon/1.2.0",)),
            PeerInfo("12D3KooWother", (ADDRESS,), False, None, None, 3, ()),
        ],
    )
    services = dataclasses.replace(services, peers=peers)
    async with browser(chromium) as page:
        async with serving(services, limit=math.inf) as url:
            yield page, url, syncs
        assert page.problems == []


async def fill(services: Services, sample: Events) -> str:
    """Give the node a diverged stream, something that waits and is pending.

    Returns:
        The CID of the stream's tip.
    """
    store = services.store
    left, right = change(INIT, n=1), change(INIT, n=2)
    anchored = time_event(INIT, right.cid)
    await store.admit_local([multibase.decode(event["car"]) for event in sample[:30]])
    await store.admit_local([INIT.car, left.car, right.car, anchored.car])
    proofs = await store.reader.pending_proofs(100)
    mine = [proof for proof in proofs if proof.proof.chain_id == CHAIN]
    await store.settle_proofs([(proof.cid, 1_700_000_000) for proof in mine])
    await store.admit_local([time_event(INIT, left.cid, tx_hash=bytes([7]) * 32).car])
    await hand_over(store, change(change(right, n=4), n=5), 3)
    return str(anchored.cid)


async def fill_products(store: Store, tmp_path: Path, anchoring: Anchoring | None) -> None:
    """Give the node a thread, a DAG of files, and an anchored event."""
    events = [event.car for event in ALL]
    source = dag_source(tmp_path)
    for shard in split(source.root, walk(source.root, source.read), 100_000):
        events.append(shard_event(KEY, source.root, shard.car).car)
    await store.admit_local(events)
    await anchoring.request(ROOT.cid, ROOT.stream_id())
    anchoring.anchor_now()


def dag_source(tmp_path: Path) -> DagSource:
    root = tmp_path / "files"
    (root / "more").mkdir(parents=True, exist_ok=True)
    (root / "words").write_text("Words of a file.\n" * 100)
    (root / "more" / "bytes").write_bytes(bytes(range(256)))
    return open_source(root)


async def axe(page: Browser, *rules: str) -> list[str]:
    """What axe finds wrong in the page as it is, by some rules or by all."""
    options = json.dumps({"runOnly": rules} if rules else {})
    violations = await page.run(
        f"axe.run({options}).then((found) => JSON.stringify(found.violations))"
    )
    return [
        f"{line['id']}: {node['html'][:200]} {node['failureSummary']}"
        for line in json.loads(violations)
        for node in line["nodes"]
    ]


async def tab_through(page: Browser) -> None:
    """Go through the page by the Tab key; fail if that leaves out what can be clicked, or if it
    does not show where it is."""
    await page.run(f"window.due = new Set({REACHABLE}); window.unseen = []; due.size")
    await page.run(
        """window.roots = new Set([...due].map((each) => each.getRootNode()));
        window.noted = () => {
            let at = document.activeElement;
            while (at.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
            window.due.delete(at);
            const style = getComputedStyle(at);
            if (style.outlineStyle === "none") window.unseen.push(at.outerHTML.slice(0, 200));
        };
        for (const root of roots) root.addEventListener("focusin", noted);
        document.querySelector("a").focus()"""
    )
    for _ in range(await page.run("due.size")):
        await page.press("Tab")
    assert await page.run("[...due].map((each) => each.outerHTML.slice(0, 200))") == []
    assert await page.run("unseen") == []
    await page.run("roots.forEach((root) => root.removeEventListener('focusin', noted))")


@asynccontextmanager
async def every_view(
    services: Services, shown: Shown, sample: Events, tmp_path: Path
) -> AsyncIterator[tuple[Browser, str, dict[str, str | None]]]:
    """A browser, a node with some of everything, and its views with their screenshots' names."""
    tip = await fill(services, sample)
    dag = dag_source(tmp_path).root
    views = {
        "": "overview",
        "feed": None,
        "streams": "streams",
        f"streams/{STREAM}?event={tip}": "stream",
        f"streams/{ROOT.stream_id()}?event={ROOT.cid}": None,
        f"events/{tip}": None,
        "models": None,
        "interests": None,
        "peers": None,
        "syncs": None,
        "undelivered/waiting": None,
        "undelivered/pending": None,
        "undelivered/refused": None,
        f"feed?before={services.store.head}": None,
        "dags": None,
        f"dags/{INIT.cid}": None,
        f"dags/{dag}": "dag",
        f"dags/{dag}?path=words": None,
        "tangles": None,
        f"tangles/{THREAD}/{ROOT.stream_id()}": "tangle",
        "anchors": None,
        "anchors?state=anchored": None,
        "search?q=bagcqcera": None,
        "nowhere": None,
    }
    async with (
        open_dags(services.store, tmp_path / "node") as dags,
        open_tangles(services.store, tmp_path / "node") as tangles,
        open_anchors(TIME, services.store),
        open_anchoring(ANCHORS, TIME, services.store, tmp_path / "node") as anchoring,
    ):
        await fill_products(services.store, tmp_path, anchoring)
        services = dataclasses.replace(services, dags=dags, tangles=tangles, anchoring=anchoring)
        async with shown(services) as (page, url, _):
            yield page, url, views


async def visit(page: Browser, view: str) -> None:
    await page.run(f"location.hash = '#/{view}'")
    now = view.partition("?")[0]
    await page.until(f"document.querySelector('main').dataset.view === '{now}'")
    await page.until(READY)
    assert await page.run("document.querySelector('main [role=alert]')") is None
    assert await page.run("[...document.querySelectorAll('dd')].every((each) => each.textContent)")


async def test_every_view_for_everyone(services, shown, sample, tmp_path):
    """No view breaks a rule of accessibility, is cut off, or fails; some are as in docs."""
    async with every_view(services, shown, sample, tmp_path) as (page, url, views):
        # The colours are all that differs between light and dark.
        for width, scheme, rules in ((1280, "light", ()), (375, "dark", ("color-contrast",))):
            await page.show(scheme)
            await page.open(url, width)
            await page.run(AXE.read_text() + ";0")
            for view, name in views.items():
                await visit(page, view)
                assert await page.run("document.documentElement.scrollWidth") <= width, view
                assert await page.run(UNCUT), view
                assert await axe(page, *rules) == [], (view, width, scheme)
                if name is not None:
                    assert await difference_of(page, name, width) < MAX_DIFFERENCE, name


@pytest.mark.long
async def test_every_view_by_the_keyboard_and_in_other_colours(services, shown, sample, tmp_path):
    """The Tab key reaches all that can be clicked; and what the test above leaves out."""
    async with every_view(services, shown, sample, tmp_path) as (page, url, views):
        for width, scheme in ((1280, "dark"), (375, "light")):
            await page.show(scheme)
            await page.open(url, width)
            await page.run(AXE.read_text() + ";0")
            for view in views:
                await visit(page, view)
                assert await axe(page) == [], (view, width, scheme)
                await tab_through(page)


@pytest.mark.long
async def test_a_selection_outlasts_what_comes_in(services: Services, shown: Shown) -> None:
    async with shown(services) as (page, url, syncs):
        await page.open(url + "/#/syncs?of=all", 1000)
        await page.until("document.querySelectorAll('tbody tr').length === 1")
        assert "930" in await page.run("document.querySelector('tbody').textContent")
        await page.run("getSelection().selectAllChildren(document.querySelector('tbody code'))")
        selected = await page.run("getSelection().toString()")
        assert selected
        await page.run("window.row = document.querySelector('tbody tr')")
        for number in range(20):
            syncs.append(sync(1_800_000_001.0 + number))
        await page.until("document.querySelectorAll('tbody tr').length === 21")
        assert await page.run("getSelection().toString()") == selected
        assert await page.run("[...document.querySelectorAll('tbody tr')].at(-1) === window.row")
        await page.open(url + "/#/syncs", 1000)  # those that moved events were not pushed out
        await page.until("document.querySelectorAll('tbody tr').length === 1")
        assert "930" in await page.run("document.querySelector('tbody').textContent")


@pytest.mark.long
async def test_the_address_holds_what_is_chosen(services, shown, sample):
    tip = await fill(services, sample)
    chosen = "document.querySelector('section[aria-label=\"The chosen event\"]')"
    drawing = "document.querySelector('.drawing')?.shadowRoot"
    nodes = f"[...({drawing}?.querySelectorAll('.node') ?? [])]"
    async with shown(services) as (page, url, _):
        await page.open(f"{url}/#/streams/{STREAM}", 1280)
        await page.until(f"{nodes}.length > 3")
        assert await page.run(chosen) is None
        text = await page.run("document.querySelector('main').textContent")
        assert "wins over" in text
        content = "document.querySelector('main').textContent.includes('\"n\": 2')"
        await page.until(content)  # that at the tip
        mine = f"{nodes}.find((each) => each.querySelector('title').textContent === '{tip}')"
        await page.run(f"{mine}.focus()")
        await page.press("Enter")
        await page.until(f"{chosen} !== null")
        assert f"event={tip}" in await page.run("location.hash")
        await page.until(f"{chosen}.textContent.includes('proof')")
        await page.until(f"{chosen}.querySelector('.json') !== null")
        assert await page.run("document.querySelector('tr.chosen').textContent.includes('tip')")
        address = await page.run("location.href")
        await page.run("history.back()")
        await page.until(f"{chosen} === null")
        await page.open(address, 390)
        await page.until(f"{chosen} !== null")


async def test_what_is_chosen_in_the_table_comes_into_view(services, store, shown):
    events = [INIT, *(change(INIT, n=n) for n in range(60))]
    await store.admit_local([event.car for event in events])
    async with shown(services) as (page, url, _):
        await page.open(f"{url}/#/streams/{STREAM}", 1280)
        await page.until("document.querySelectorAll('tbody tr').length === 61")
        await page.run("document.querySelector('tbody tr:last-child a').click()")
        seen = "document.querySelector('section.chosen h2')?.getBoundingClientRect()"
        await page.until(f"{seen}?.top >= 0 && {seen}.bottom <= innerHeight")
        await page.run("document.querySelector('section.chosen button').focus()")
        await page.press("Enter")  # the next event: its button is still there, and has the focus
        await page.until(f"location.hash.includes('{events[1].cid}')")
        assert await page.run("document.activeElement.textContent") == "Later"


async def test_content_is_shown_as_it_is(services, store, shown):
    """Nothing in it is rounded, invisible, or turns the writing direction; names can be blank, and
    long ones push no column out of sight."""
    document = init_event(KEY, MODEL, {"n": 2**63, "\u202en": "\u2066\u200b"})
    models = [model_event(KEY, {**DEFINITION, "name": name}) for name in ("n" * 300, " ")]
    await store.admit_local([document.car, *(each.car for each in models)])
    async with shown(services) as (page, url, _):
        await page.open(f"{url}/#/streams/{document.stream_id()}", 1280)
        await page.until("document.querySelector('.json') !== null")
        text = await page.run("document.querySelector('.json').textContent")
        assert json.loads(text) == {"n": 2**63, "\u202en": "\u2066\u200b"}
        assert text.isascii()
        await page.open(f"{url}/#/models", 1280)
        await page.until("document.querySelector('tbody a')?.textContent === '(no name)'")
        await visit(page, "streams")
        assert await page.run(UNCUT)


async def test_search_and_the_live_feed(services, store, shown, sample):
    await fill(services, sample)
    async with shown(services) as (page, url, _):
        await page.open(url, 1280)
        await page.until("document.querySelector('[type=search]') !== null")
        await page.run("document.querySelector('[type=search]').focus()")
        await page.call("Input.insertText", text=STREAM[:30])
        await page.press("Enter")
        await page.until("document.querySelector('tbody a') !== null")
        assert STREAM in await page.run("document.querySelector('tbody a').href")
        await page.press("Control+k")
        await page.call("Input.insertText", text=STREAM)
        await page.press("Enter")  # a whole id leads there
        await page.until(f"location.hash === '#/streams/{STREAM}' && {READY}")
        await page.open(url + "/#/feed", 1280)
        await page.until("document.querySelectorAll('tbody tr').length > 1")
        latest = "Number(document.querySelector('tbody td').textContent)"
        assert await page.run(latest) == store.head
        await store.admit_local([change(INIT, n=9).car])
        await page.until(f"{latest} === {store.head}")


async def test_errors_in_words(services: Services, shown: Shown) -> None:
    async with shown(services) as (page, url, _):
        await page.open(f"{url}/#/streams/{STREAM}", 1280)
        await page.until("document.querySelector('main [role=alert]') !== null")
        said = await page.run("document.querySelector('main [role=alert]').textContent")
        assert said.startswith("Stream not found")
        page.problems.clear()  # the console lists answers that are errors


async def test_an_address_that_somebody_typed(services: Services, shown: Shown) -> None:
    async with shown(services) as (page, url, _):
        await page.open(f"{url}/#/100%", 1280)
        await page.until("document.querySelector('main h1') !== null")
        assert await page.run("document.querySelector('main h1').textContent") == "No such page"


@pytest.mark.long
async def test_a_node_that_wants_its_token(services: Services, shown: Shown) -> None:
    services = dataclasses.replace(services, access=Access(token=TOKEN, token_for="all"))
    async with shown(services) as (page, url, _):
        await page.open(url, 390)
        await page.until("document.activeElement.matches('[type=password]')")
        assert await page.run("document.querySelector('main [role=alert]')") is None
        await page.call("Input.insertText", text=TOKEN)
        await page.press("Enter")
        await page.until("document.querySelector('.numbers') !== null")
        assert await page.run("document.querySelector('[type=password]')") is None
        assert TOKEN not in await page.run("location.href")
        page.problems.clear()


async def test_a_browser_without_javascript_says_so(services: Services, shown: Shown) -> None:
    async with shown(services) as (page, url, _):
        await page.call("Emulation.setScriptExecutionDisabled", value=True)
        await page.open(url, 390)
        place = "document.querySelector('noscript p').getBoundingClientRect()"
        assert await page.run(f"{place}.height > 0 && {place}.bottom <= innerHeight")


@pytest.mark.long
async def test_nothing_is_asked_while_the_tab_is_hidden(services: Services, shown: Shown) -> None:
    hide = (
        "window.hide = true; Object.defineProperty(document, 'hidden', { get: () => window.hide })"
    )
    asked = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/ceramic/'))"
    async with shown(services) as (page, url, _):
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=hide)
        for view in ("", "feed", "peers"):
            await page.open(f"{url}/#/{view}", 1280)
            await page.until("document.querySelector('nav.views') !== null")
            assert await page.run(f"{asked}.length") == 0
            await page.run("hide = false; document.dispatchEvent(new Event('visibilitychange')); 0")
            await page.until(READY)
            assert await page.run(f"{asked}.length") > 0


@pytest.mark.long
async def test_docs_fit_a_phone_and_send_the_token(services: Services, shown: Shown) -> None:
    services = dataclasses.replace(services, access=Access(token=TOKEN, token_for="all"))
    async with shown(services) as (page, url, _):
        await page.open(url + "/docs", 390)
        await page.until("document.querySelector('button.authorize') !== null")
        await page.run("document.querySelector('button.authorize').click()")
        await page.until("document.querySelector('.auth-container input') !== null")
        await page.run("document.querySelector('.auth-container input').focus()")
        await page.call("Input.insertText", text=TOKEN)
        await page.run("document.querySelector('.auth-container button.authorize').click()")
        await page.run("document.querySelector('.btn-done').click()")
        await page.run("document.querySelector('[id$=get_ceramic_recon] button').click()")
        await page.until("document.querySelector('.execute') !== null")
        await page.run("document.querySelector('.execute').click()")
        await page.until("document.querySelector('.live-responses-table .response') !== null")
        answer = await page.run("document.querySelector('.live-responses-table').textContent")
        assert "200" in answer
        assert PEER in answer
        assert await page.run("document.documentElement.scrollWidth") == 390


FIVE_TIMES_AS_OFTEN = """((later) => {
    window.setTimeout = (call, milliseconds) => later(call, milliseconds / 5);
})(window.setTimeout)"""


def asked(end: str) -> str:
    """How often the page has read addresses that end so."""
    entries = "performance.getEntriesByType('resource')"
    return f"{entries}.filter((each) => each.name.endsWith('{end}')).length"


async def test_a_tangle_is_shown_live(services: Services, shown: Shown, tmp_path: Path) -> None:
    """A reply that comes while the thread is open appears in it; until then, it is read once."""
    store = services.store
    await store.admit_local([event.car for event in ALL[:2]])
    left = "[...document.querySelectorAll('.prose')].some((each) => each.textContent === 'left')"
    async with open_tangles(store, tmp_path / "node") as tangles:
        services = dataclasses.replace(services, tangles=tangles)
        async with shown(services) as (page, url, _):
            await page.call("Page.addScriptToEvaluateOnNewDocument", source=FIVE_TIMES_AS_OFTEN)
            await page.open(f"{url}/#/tangles/{THREAD}/{ROOT.stream_id()}", 1280)
            await page.until(f"{READY} && document.querySelector('.prose') !== null")
            assert not await page.run(left)
            await page.until(f"{asked('/ceramic/tangles/' + str(ROOT.stream_id()))} > 2")
            assert await page.run(asked("drawn=true")) == 1
            await store.admit_local([event.car for event in ALL[2:]])
            await page.until(left)
