"""The web pages, in a browser: they stay as they are while the node's state changes."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
from browser import Browser, browser

from recon_node.api import Access, Services, create_app, open_listener, serve
from recon_node.p2p import Counters, PeerInfo, SyncReport

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
ADDRESS = f"/ip4/192.0.2.1/tcp/4101/p2p/{PEER}"


def sync(finished_at: float, sent: int = 0) -> SyncReport:
    numbers = dict.fromkeys(("bytes_sent", "bytes_received", "event_bytes_received"), 87)
    return SyncReport(
        peer=PEER,
        role="responder",
        protocol="/ceramic/recon/1.1.0",
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


@asynccontextmanager
async def shown(
    services: Services, tmp_path: Path
) -> AsyncIterator[tuple[Browser, str, list[SyncReport]]]:
    """A browser, and the address of a node whose syncs are those of a list."""
    syncs = [sync(1_800_000_000.0, sent=930)]
    peers: Any = SimpleNamespace(
        peer_id=PEER,
        addresses=[ADDRESS] * 3,
        sync_reports=syncs,
        transfers=syncs[:1],
        counters=Counters(),
        peers=lambda: [
            PeerInfo(PEER, (ADDRESS,), True, 0.01, syncs[-1].finished_at, 0, ("recon/1.1.0",))
        ],
    )
    services = dataclasses.replace(services, peers=peers)
    listener = await open_listener("127.0.0.1", 0)
    async with browser(tmp_path / "profile") as page, trio.open_nursery() as nursery:
        nursery.start_soon(serve, create_app(services), listener, services.closing)
        try:
            yield page, listener.url, syncs
        finally:
            services.closing.set()
        assert page.problems == []


async def test_a_selection_outlasts_what_comes_in(services: Services, tmp_path: Path) -> None:
    async with shown(services, tmp_path) as (page, url, syncs):
        await page.open(url, 1000)
        await page.until("document.querySelectorAll('#syncs tbody tr').length === 1")
        assert "930" in await page.run("document.getElementById('transfers').textContent")
        assert "pending" in await page.run("document.getElementById('cards').textContent")
        await page.run("getSelection().selectAllChildren(document.querySelector('#self td + td'))")
        assert await page.run("getSelection().toString()") == PEER
        for number in range(20):  # more than the page shows
            syncs.append(sync(1_800_000_001.0 + number))
        await page.until("document.querySelectorAll('#syncs tbody tr').length === 12")
        assert await page.run("getSelection().toString()") == PEER
        assert "930" in await page.run("document.getElementById('transfers').textContent")

        await page.run("window.row = document.querySelector('#syncs tbody tr')")
        syncs.append(sync(1_800_000_100.0))
        await page.until("document.querySelector('#syncs tbody tr') !== window.row")
        assert await page.run("document.querySelectorAll('#syncs tbody tr')[1] === window.row")


async def test_the_pages_fit_a_phone(services: Services, tmp_path: Path) -> None:
    async with shown(services, tmp_path) as (page, url, _):
        for path, there in (("/", "#syncs tbody tr"), ("/docs", ".opblock")):
            await page.open(url + path, 375)
            await page.until(f"document.querySelector('{there}') !== null")
            assert await page.run("document.documentElement.scrollWidth") == 375, path


async def test_docs_sends_a_request_with_the_token(services: Services, tmp_path: Path) -> None:
    token = "0123456789abcdef"
    services = dataclasses.replace(services, access=Access(token=token, token_for="all"))
    async with shown(services, tmp_path) as (page, url, _):
        await page.open(url + "/docs", 390)
        await page.until("document.querySelector('button.authorize') !== null")
        await page.run("document.querySelector('button.authorize').click()")
        await page.until("document.querySelector('.auth-container input') !== null")
        await page.run("document.querySelector('.auth-container input').focus()")
        await page.call("Input.insertText", text=token)
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


async def test_headings_break_between_words_only(services: Services, tmp_path: Path) -> None:
    async with shown(services, tmp_path) as (page, url, _):
        for width in (1000, 375):
            await page.open(url, width)
            await page.until("document.querySelector('#syncs tbody tr') !== null")
            lines = """Math.max(...[...document.querySelectorAll("th")].map((each) => {
                const range = document.createRange();
                range.selectNodeContents(each);
                return new Set([...range.getClientRects()].map((box) => box.top)).size
                    - each.textContent.split(" ").length;
            }))"""
            assert await page.run(lines) <= 0, width
